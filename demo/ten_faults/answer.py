"""What `why` says and what it should say, part by part. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

Names = Mapping[str, str]
"""What a fault struck: the name of its `node`, the number of its `rank`."""
ANYTHING = "..."
_CONCLUSION = re.compile(r"Heals: (.*?)\nDo: (.*)", re.S)
_BULLET = re.compile(r"^  - ", re.M)


@dataclass(frozen=True)
class Answer:
    """What `why` should say. `...` stands for anything, and `{node}` and the like for what the
    fault struck. Lines may be broken anywhere.
    """

    sentence: str
    """All of its first sentence: the reason, and the name of what is wrong."""
    heals: str = ""
    """All that stands behind `Heals:`. Empty: there is no such line, since the job trains well."""
    todo: str = ""
    """All that stands behind `Do:`."""
    evidence: tuple[str, ...] = ()
    """Each is all of one piece of the evidence."""

    def filled(self, names: Names) -> Answer:
        """With the names put in."""
        return Answer(
            self.sentence.format_map(names),
            self.heals.format_map(names),
            self.todo.format_map(names),
            tuple(one.format_map(names) for one in self.evidence),
        )


def read(why: str) -> Answer:
    """What `why` says."""
    sentence, *blocks = why.split("\n\n")
    conclusion = _CONCLUSION.fullmatch(blocks[-1]) if blocks else None
    heals, todo = conclusion.groups() if conclusion else ("", "")
    evidence = [one for block in blocks if block.startswith("Evidence:") for one in _items(block)]
    return Answer(_plain(sentence), _plain(heals), _plain(todo), tuple(evidence))


def _items(block: str) -> Iterator[str]:
    _, *items = _BULLET.split(block)
    return map(_plain, items)


def _plain(text: str) -> str:
    return " ".join(text.split())


def unsaid(expected: Answer, names: Names, why: str) -> list[str]:
    """What `why` does not say where it should, as ends of a sentence about it."""
    wanted, said = expected.filled(names), read(why)
    parts = (
        (wanted.sentence, said.sentence, "in its first sentence"),
        (wanted.heals, said.heals, "after `Heals:`"),
        (wanted.todo, said.todo, "after `Do:`"),
    )
    return [
        *(f"`{want or 'nothing'}` {where}" for want, has, where in parts if not fits(want, has)),
        *(
            f"`{one}` as evidence"
            for one in wanted.evidence
            if not any(fits(one, has) for has in said.evidence)
        ),
    ]


def fits(pattern: str, text: str) -> bool:
    """Whether a text is all that a pattern says."""
    return re.fullmatch(".*".join(map(re.escape, pattern.split(ANYTHING))), text) is not None


def trains(job: str, workers: str) -> str:
    """The first sentence about a job that trains well, such as on `3 workers`."""
    return f"{job} trains: step ... of 1000000 on {workers}..."


SOMEBODY = "no, somebody has to act"
"""Behind `Heals:`, of most faults."""
