"""Reads the simple commands of a shell script, without running anything. Pure.

It knows words, quotes, variables that the text itself sets, and steps with `&&`, `;` and new lines
between them. What it does not know (loops, substitution of commands, redirection) stays in the
words as it was written, so that nobody mistakes it for a value.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from regroup.converting.shell_arithmetic import compute

_NAME = r"[A-Za-z_][A-Za-z0-9_]*"
_ASSIGNMENT = re.compile(rf"({_NAME})=(.*)", re.DOTALL)
_VARIABLE = re.compile(rf"\$(?:({_NAME})|\{{({_NAME})(?::?-([^}}$`]*))?\}})")
_HERE_DOCUMENT = re.compile(r"(?<!<)<<(-?)\s*(['\"]?)(\w+)\2")
_QUOTES = re.compile(r"\\.|['\"]|(?:^|(?<=\s))#")
"""What begins or ends quotes, or does not although it looks so; and where a comment begins."""
_MOST_QUOTED_LINES = 100
_ENDS = frozenset({"&&", ";", "||", "|", "&", "|&", ";;"})
_DESCRIPTOR = re.compile(r"\d(?=[<>])", re.ASCII)
_REDIRECTION = re.compile(r"[<>]+&?|&>+")
_DOLLAR = "\ue000"
"""Stands for a dollar sign that is none of a variable."""
_MARK = "\ue001"
_KEPT = re.compile(f"{_MARK}(\\d+)\ue002")
"""Stands for a text that only a shell can read."""
_MOST_EXPANDED = 1 << 18
"""Characters of all values that are put in the place of variables."""
_MOST_CHARACTERS = 1 << 15
"""Of a line that is split into words. Longer ones are no commands that somebody wrote."""
LOOPS = frozenset({"for", "while", "until", "select"})
KEYWORDS = LOOPS | frozenset(
    {
        "if", "then", "else", "elif", "fi", "do", "done", "case", "esac", "function", "{",
        "}", "(", ")", "[", "[[", "!", "test", "true", "false", "set", "echo", "printf", "shopt",
        "trap", "ulimit", "umask", "wait", "unset", "declare", "local", "readonly",
    }
)  # fmt: skip


@dataclass(frozen=True)
class HereDocument:
    """The text that follows a line with `<< WORD`, up to that word."""

    text: str
    """As it was written, with a newline behind each line."""
    quoted: bool
    """Whether the shell takes it as it is, without replacing anything."""


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
    document: HereDocument | None = None
    """What it reads, where that follows its line."""


class ShellText:
    """The commands of a script, read in order."""

    def __init__(self, text: str, known: Mapping[str, str]) -> None:
        self.variables = dict(known)
        self.used: set[str] = set()
        """Variables whose value was put somewhere."""
        self._expanded = 0
        self.commands = list(self._read(text))

    def _read(self, text: str) -> Iterator[Command]:
        for line, logical, document in _logical_lines(text):
            for command in self._read_line(line, logical):
                reads = document is not None and "<<" in command.redirected
                yield replace(command, document=document) if reads else command

    def _read_line(self, line: int, text: str) -> Iterator[Command]:
        kept: list[str] = []
        expanded = self._expand(_keep_substitutions(text, kept), kept)
        try:
            words = _split(expanded)
        except ValueError:
            yield Command(line, text.strip(), (text.strip(),))
            return
        for group in _groups(words):
            restored = [_restore(word, kept) for word in group]
            if restored:
                yield self._command(line, restored)

    def _command(self, line: int, words: list[str]) -> Command:
        text = " ".join(words)
        plain, redirected = _without_redirections(words)
        exports = plain[:1] == ["export"] and not any(word.startswith("-") for word in plain)
        rest = plain[1:] if exports else plain
        assignments: dict[str, str] = {}
        while rest and (exports or _ASSIGNMENT.fullmatch(rest[0])):
            word, rest = rest[0], rest[1:]
            if found := _ASSIGNMENT.fullmatch(word):
                assignments[found[1]] = found[2]
            else:  # `export NAME`: of a variable that is set already
                assignments[word] = self.variables.get(word, f"${word}")
        if not rest:
            self._set(assignments)
        if rest[:1] == ["read"]:
            self._forget(rest[1:])
        return Command(line, text, tuple(rest), assignments, exports, tuple(redirected))

    def _set(self, assignments: Mapping[str, str]) -> None:
        for name, value in assignments.items():
            if "$(" not in value and "`" not in value:
                self.variables[name] = value
            else:
                self.variables.pop(name, None)

    def _forget(self, names: Sequence[str]) -> None:
        """These variables have values now that nobody knows here."""
        for name in names:
            self.variables.pop(name, None)

    def _expand(self, text: str, kept: Sequence[str]) -> str:
        """The text with the values of variables and of `$((...))`, but within single quotes."""
        out, place, quote = "", 0, ""
        while place < len(text):
            character = text[place]
            if character == "\\" and quote != "'":
                escaped = text[place : place + 2]
                out, place = out + (_DOLLAR if escaped == "\\$" else escaped), place + 2
                continue
            if character in "'\"" and quote in ("", character):
                quote = "" if quote else character
            if not quote and _DESCRIPTOR.match(text, place) and text[place - 1 : place].isspace():
                place += 1
                continue
            found, value = None, None
            if character == "$" and quote != "'" and (found := _VARIABLE.match(text, place)):
                value = self._value(found)
            elif character == _MARK and quote != "'" and (found := _KEPT.match(text, place)):
                value = self._computed(kept, int(found[1]))
            if found and value is not None:
                out, place = out + value.replace("$", _DOLLAR), found.end()
                continue
            out, place = out + character, place + 1
        return out

    def _computed(self, kept: Sequence[str], number: int) -> str | None:
        """The value of `$((...))`; None for other substitutions."""
        written = kept[number] if number < len(kept) else ""
        if not written.startswith("$((") or not written.endswith("))"):
            return None
        used: set[str] = set()
        value = compute(written[3:-2], self.variables, used)
        self.used |= used if value is not None else set()
        return None if value is None else str(value)

    def _value(self, found: re.Match[str]) -> str | None:
        name = found[1] if found[1] is not None else found[2]
        default: str | None = found[3]
        value = self.variables.get(name) if name in self.variables else default
        if value is None or self._expanded + len(value) > _MOST_EXPANDED:
            return None
        self._expanded += len(value)
        self.used.add(name)
        return value


def is_plain(value: str) -> bool:
    """Whether a text has nothing in it that only a shell could replace."""
    return "$" not in value and "`" not in value


def _logical_lines(text: str) -> Iterator[tuple[int, str, HereDocument | None]]:
    """Lines with their number and the document that follows them, joined where one ends with a
    backslash or within quotes, without comments.
    """
    lines, place = [line.removesuffix("\r") for line in text.split("\n")], 0
    while place < len(lines):
        number, whole = place + 1, lines[place]
        document: HereDocument | None = None
        place += 1
        while whole.endswith("\\") and not whole.endswith("\\\\"):
            whole = whole[:-1] + " " + "".join(lines[place : place + 1])
            place += 1
        if not whole.strip() or whole.lstrip().startswith("#"):
            continue
        if more := _lines_of_quote(whole, lines[place : place + _MOST_QUOTED_LINES]):
            whole, place = "\n".join([whole, *lines[place : place + more]]), place + more
        elif found := _HERE_DOCUMENT.search(whole):
            tabs = "\t" if found[1] else ""
            ends = (n for n in range(place, len(lines)) if lines[n].lstrip(tabs) == found[3])
            end = next(ends, len(lines))
            body = "".join(f"{line.lstrip(tabs)}\n" for line in lines[place:end])
            document, place = HereDocument(body, bool(found[2])), end + 1
        yield number, whole, document


def _lines_of_quote(line: str, following: Sequence[str]) -> int:
    """How many lines belong to quotes that are open at the end of a line; 0 where none are, or
    where none of the lines closes them.
    """
    quote = _open_quote(line, "")
    for count, more in enumerate(following if quote else (), 1):
        quote = _open_quote(more, quote)
        if not quote:
            return count
    return 0


def _open_quote(line: str, quote: str) -> str:
    """The quotation mark that is open at the end of a line, which begins within `quote`."""
    for found in _QUOTES.finditer(line):
        mark = found[0]
        if mark.endswith("#") and not quote:
            break
        if mark in ("'", '"') and quote in ("", mark):
            quote = "" if quote else mark
        elif mark == "\\'" and quote == "'":
            quote = ""  # a backslash is one there
    return quote


def _keep_substitutions(text: str, kept: list[str]) -> str:
    """The text with `$(...)` and `...` in backticks replaced by marks; they go to `kept`."""
    ends, out, place = _ends_of_substitutions(text), "", 0
    while place < len(text):
        end = ends.get(place, place)
        if end > place:
            out += f"{_MARK}{len(kept)}\ue002"
            kept.append(text[place:end])
            place = end
        else:
            out += text[place]
            place += 1
    return out


def _ends_of_substitutions(text: str) -> dict[int, int]:
    """Where a substitution begins -> where it ends."""
    found: dict[int, int] = {}
    opened: list[int] = []
    backtick = -1
    for place, character in enumerate(text):
        if character == "(":
            opened.append(place)
        elif character == ")" and opened:
            start = opened.pop() - 1
            if text[start : start + 1] == "$" and text[start - 1 : start] != "\\":
                found[start] = place + 1
        elif character == "`" and backtick >= 0:
            found[backtick], backtick = place + 1, -1
        elif character == "`":
            backtick = place
    return found


def _restore(word: str, kept: list[str]) -> str:
    whole = _KEPT.sub(lambda found: kept[int(found[1])] if int(found[1]) < len(kept) else "", word)
    return whole.replace(_DOLLAR, "$")


def _split(text: str) -> list[str]:
    """The words; what stands between commands is a word of its own. Raises ValueError for a
    quotation mark without its other half, and for what is too long.
    """
    if len(text) > _MOST_CHARACTERS:
        raise ValueError(f"{len(text)} characters")
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
        elif word == "do" and not group:
            yield [word]
        else:
            group.append(word)
    yield group


def _without_redirections(words: list[str]) -> tuple[list[str], list[str]]:
    for place, word in enumerate(words):
        if word in ("|", "|&") or _REDIRECTION.fullmatch(word):
            return words[:place], words[place:]
    return words, []
