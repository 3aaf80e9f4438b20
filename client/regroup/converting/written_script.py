"""Scripts that a command writes before it starts them, as those that Kubeflow's SDK makes of a
function: a text of the command itself becomes a file. Pure.

Such a text is taken where it is certain what the shell would write: `cat > FILE << X`, or
`read -r -d '' NAME << X` and `printf "%s" "$NAME" > FILE`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from posixpath import basename, normpath

from regroup.converting.shell_text import Command, HereDocument
from regroup_trainer.protocol.message import shorten

_WRITES = frozenset({">", ">>", "&>", "&>>"})
_FORMATS = frozenset({"%s", "%s\\n"})
_READ_FLAGS = (("-r", "-d", ""), ("-d", "", "-r"), ("-rd", ""))
_VALUE = re.compile(r"\$(?:([A-Za-z_]\w*)|\{([A-Za-z_]\w*)\})", re.ASCII)
_OF_SHELL = re.compile(r"\\([$`\\\n])|(`|\$[A-Za-z0-9_{(\[*@#?!$-][\w({\[]*)", re.ASCII)
"""What a shell replaces in a text whose word is not quoted."""
_STRIPPED = " \t\n"
"""What `read` takes off both ends."""
_INSTEAD = (
    "save it as a file of the image or of a volume and start that, or give it to train(script=...) "
    "of Regroup's Python client"
)


@dataclass(frozen=True)
class WrittenFile:
    """A file that commands write."""

    path: str
    steps: tuple[Command, ...]
    """What writes it."""
    document: HereDocument | None
    """Its text; None: it is not known what the commands write."""
    stripped: bool = False

    def code(self) -> str:
        """What the shell would write. Raises ValueError where that is not known."""
        if self.document is None:
            raise ValueError(
                f"{shorten(self.path)} is written by the command itself "
                f"({shorten(self.steps[-1].text)}): {_INSTEAD}"
            )
        text = self.document.text
        if not self.document.quoted:
            text = _OF_SHELL.sub(self._literal, text)
        return text.strip(_STRIPPED) if self.stripped else text

    def _literal(self, found: re.Match[str]) -> str:
        if found[2]:
            raise ValueError(
                f"{shorten(self.path)} is written by the command itself, and a shell would replace "
                f"{shorten(found[2])} in its text: {_INSTEAD}"
            )
        return found[1].strip("\n")


def written_files(before: Sequence[Command]) -> dict[str, WrittenFile]:
    """The files that these commands write, by their plain paths."""
    writers: dict[str, list[Command]] = {}
    read: dict[str, Command] = {}
    for command in before:
        if variable := _read_variable(command):
            read[variable] = command
        for path in _targets(command):
            writers.setdefault(normpath(path), []).append(command)
    return {path: _file(path, steps, read) for path, steps in writers.items()}


def require_not_written(named: str, files: Mapping[str, WrittenFile]) -> None:
    """Raises ValueError for a script that has the name of a written file, in another folder, which
    the command may have changed to.
    """
    for path, file in files.items():
        if basename(path) == basename(named):
            raise ValueError(
                f"{shorten(named)} may be the file that the command itself writes "
                f"({shorten(file.steps[-1].text)}): {_INSTEAD}"
            )


def _file(path: str, writers: Sequence[Command], read: Mapping[str, Command]) -> WrittenFile:
    writer = writers[0]
    if len(writers) > 1 or ">" not in writer.redirected:
        return WrittenFile(path, tuple(writers), None)
    plain = [word for word in writer.redirected if word != "-"]  # of `<<- WORD`
    if writer.words == ("cat",) and writer.document and len(plain) == 4:
        return WrittenFile(path, (writer,), writer.document)
    is_printed = writer.words[:1] == ("printf",) and len(writer.words) == 3
    if is_printed and writer.words[1] in _FORMATS and len(writer.redirected) == 2:
        value = _VALUE.fullmatch(writer.words[2])
        reader = read.get(value[1] or value[2]) if value else None
        if reader:
            return WrittenFile(path, (reader, writer), reader.document, stripped=True)
    return WrittenFile(path, tuple(writers), None)


def _read_variable(command: Command) -> str:
    """The variable that is read from a text behind the command; empty: there is none."""
    is_read = command.words[:1] == ("read",) and command.words[1:-1] in _READ_FLAGS
    return command.words[-1] if is_read and command.document else ""


def _targets(command: Command) -> Iterator[str]:
    """The files that a command writes to, by redirection or by tee."""
    words = (*command.words, *command.redirected)
    for place, word in enumerate(words[:-1]):
        if word in _WRITES:
            yield words[place + 1]
        if word == "tee" and (place == 0 or words[place - 1] in ("|", "|&")):
            for target in words[place + 1 :]:
                if not target or target[0] in "<>|&":
                    break
                if target[0] != "-":
                    yield target
