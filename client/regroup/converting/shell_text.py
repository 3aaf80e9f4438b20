"""Reads the simple commands of a shell script, without running anything. Pure.

It knows words, quotes, variables that the text itself sets, and steps with `&&`, `;` and new lines
between them. What it does not know (loops, substitution of commands, redirection) stays in the
words as it was written, so that nobody mistakes it for a value.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

_NAME = r"[A-Za-z_][A-Za-z0-9_]*"
_ASSIGNMENT = re.compile(rf"({_NAME})=(.*)", re.DOTALL)
_VARIABLE = re.compile(rf"\$(?:({_NAME})|\{{({_NAME})(?::?-([^}}$`]*))?\}})")
_HERE_DOCUMENT = re.compile(r"<<-?\s*(['\"]?)(\w+)\1")
_ENDS = frozenset({"&&", ";", "||", "|", "&", "|&", ";;"})
_REDIRECTION = re.compile(r"[<>]+&?|&>+")
_DOLLAR = "\ue000"
"""Stands for a dollar sign that is none of a variable."""
_KEPT = re.compile("\ue001(\\d+)\ue002")
"""Stands for a text that only a shell can read."""
_MOST_EXPANDED = 1 << 16
"""Characters of a line in which variables are replaced."""
KEYWORDS = frozenset(
    {
        "if", "then", "else", "elif", "fi", "for", "while", "until", "do", "done", "case", "esac",
        "function", "select", "{", "}", "(", ")", "[", "[[", "!", "test", "true", "false", "set",
        "shopt", "trap", "ulimit", "umask", "wait", "unset", "declare", "local", "readonly",
    }
)  # fmt: skip


@dataclass(frozen=True)
class Command:
    """One simple command of a script."""

    line: int
    text: str
    """As it was written, with variables replaced."""
    words: tuple[str, ...] = ()
    assignments: Mapping[str, str] = field(default_factory=dict)
    """Variables in front of it, or all that the command is."""
    exports: bool = False
    """Whether it is `export`: programs see the assignments."""
    redirected: tuple[str, ...] = ()
    """Words about files and pipes, which do not belong to the command."""


class ShellText:
    """The commands of a script, read in order."""

    def __init__(self, text: str, known: Mapping[str, str]) -> None:
        self.variables = dict(known)
        self.used: set[str] = set()
        """Variables whose value was put somewhere."""
        self.commands = list(self._read(text))

    def _read(self, text: str) -> Iterator[Command]:
        for line, logical in _logical_lines(text):
            yield from self._read_line(line, logical)

    def _read_line(self, line: int, text: str) -> Iterator[Command]:
        kept: list[str] = []
        expanded = self._expand(_keep_substitutions(text, kept))
        try:
            words = _split(expanded)
        except ValueError:  # a quotation mark without its other half
            yield Command(line, text.strip(), (text.strip(),))
            return
        for group in _groups(words):
            restored = [_restore(word, kept) for word in group]
            if restored:
                yield self._command(line, restored)

    def _command(self, line: int, words: list[str]) -> Command:
        text = " ".join(words)
        plain, redirected = _without_redirections(words)
        exports = plain[:1] == ["export"]
        rest = plain[1:] if exports else plain
        assignments: dict[str, str] = {}
        while rest and (found := _ASSIGNMENT.fullmatch(rest[0])):
            assignments[found[1]] = found[2]
            rest = rest[1:]
        if exports:  # `export NAME`: of a variable that is set already
            assignments |= {name: self.variables.get(name, f"${name}") for name in rest}
            rest = []
        if not rest:
            self._set(assignments)
        return Command(line, text, tuple(rest), assignments, exports, tuple(redirected))

    def _set(self, assignments: Mapping[str, str]) -> None:
        for name, value in assignments.items():
            if is_plain(value):
                self.variables[name] = value
            else:
                self.variables.pop(name, None)

    def _expand(self, text: str) -> str:
        """The text with the values of variables, but within single quotes."""
        out, place, quoted = "", 0, False
        while place < len(text):
            character = text[place]
            if character == "\\" and not quoted and text[place + 1 : place + 2] == "$":
                out, place = out + _DOLLAR, place + 2
                continue
            if character == "'" and (quoted or not _within_double(text[:place])):
                quoted = not quoted
            found = _VARIABLE.match(text, place) if not quoted else None
            value = self._value(found) if found and len(out) < _MOST_EXPANDED else None
            if found and value is not None:
                out, place = out + value.replace("$", _DOLLAR), found.end()
                continue
            out, place = out + character, place + 1
        return out

    def _value(self, found: re.Match[str]) -> str | None:
        name = found[1] or found[2]
        if name in self.variables:
            self.used.add(name)
            return self.variables[name]
        return found[3]


def is_plain(value: str) -> bool:
    """Whether a text has nothing in it that only a shell could replace."""
    return "$" not in value and "`" not in value


def _within_double(text: str) -> bool:
    return text.replace('\\"', "").count('"') % 2 == 1


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Lines with their number, joined where one ends with a backslash, without comments. A
    document in the script counts as one line with what it belongs to.
    """
    lines = enumerate(text.splitlines(), 1)
    for number, line in lines:
        whole = line
        while whole.endswith("\\") and not whole.endswith("\\\\"):
            whole = whole[:-1] + " " + next(lines, (0, ""))[1]
        if found := _HERE_DOCUMENT.search(whole):
            for _, inner in lines:
                whole += f"\n{inner}"
                if inner.strip() == found[2]:
                    break
        if whole.strip() and not whole.lstrip().startswith("#"):
            yield number, whole


def _keep_substitutions(text: str, kept: list[str]) -> str:
    """The text with `$(...)` and `...` in backticks replaced by marks; they go to `kept`."""
    out, place = "", 0
    while place < len(text):
        end = _end_of_substitution(text, place)
        if end > place:
            out += f"\ue001{len(kept)}\ue002"
            kept.append(text[place:end])
            place = end
        else:
            out += text[place]
            place += 1
    return out


def _end_of_substitution(text: str, start: int) -> int:
    if text[start] == "`":
        return text.find("`", start + 1) + 1
    if not text.startswith("$(", start) or text[start - 1 : start] == "\\":
        return 0
    depth = 0
    for place in range(start + 1, len(text)):
        depth += {"(": 1, ")": -1}.get(text[place], 0)
        if depth == 0:
            return place + 1
    return 0


def _restore(word: str, kept: list[str]) -> str:
    whole = _KEPT.sub(lambda found: kept[int(found[1])] if int(found[1]) < len(kept) else "", word)
    return whole.replace(_DOLLAR, "$")


def _split(text: str) -> list[str]:
    """The words; what stands between commands is a word of its own."""
    lexer = shlex.shlex(text, posix=True, punctuation_chars=";&|<>")
    lexer.whitespace_split = True
    lexer.commenters = ""
    words = []
    for word in lexer:
        if word.startswith("#"):
            break
        words.append(word)
    return words


def _groups(words: list[str]) -> Iterator[list[str]]:
    """The words of each command. What follows a pipe belongs to the command before it."""
    group: list[str] = []
    for word in words:
        if word in _ENDS and word not in ("|", "|&"):
            yield group
            group = []
        else:
            group.append(word)
    yield group


def _without_redirections(words: list[str]) -> tuple[list[str], list[str]]:
    for place, word in enumerate(words):
        is_file = _REDIRECTION.fullmatch(word) is not None
        if word in ("|", "|&") or is_file:
            before = 1 if is_file and place and words[place - 1] in ("1", "2") else 0
            return words[: place - before], words[place - before :]
    return words, []
