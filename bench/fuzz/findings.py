"""What a fuzz has found so far."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from bench.fuzz.server_refusals import is_known, kinds, unknown
from tests.support.kube_api import Json

MOST_CHARACTERS = 2000
"""Of what is shown of a spec."""


@dataclass(frozen=True)
class Refusal:
    """What the API server refused, and our validation took."""

    answer: str
    """Status and sentence of the API server."""
    given: Json | str
    """The spec; else where it is from."""

    def __str__(self) -> str:
        return f"{self.answer} -- {json.dumps(self.given)[:MOST_CHARACTERS]}"


@dataclass
class Findings:
    """What was found of all jobs and templates."""

    jobs: int = 0
    """That the API server took."""
    refused: int = 0
    """That it did not."""
    templates: int = 0
    """Judged by our validation."""
    dry_runs: int = 0
    """Pods of those that it took, as the API server was asked to take them."""
    silent: list[str] = field(default_factory=list)
    """Specs of jobs that show nothing for too long."""
    unnamed: list[str] = field(default_factory=list)
    """Refusals that do not name field and value."""
    errors: list[str] = field(default_factory=list)
    """Of what judges templates."""
    refusals: dict[str, Refusal] = field(default_factory=dict)
    """Kind -> the first refusal that our validation should have given, and did not."""
    reasons: Counter[str] = field(default_factory=Counter)
    """Of the condition Ready."""

    def note_refusal(self, answer: str, given: Json | str) -> None:
        """Keep an answer of the API server to what our validation took, where it is a finding."""
        for kind in kinds(answer):
            self.refusals.setdefault(kind, Refusal(answer, given))

    def new_refusals(self) -> list[str]:
        """Refusals of kinds that no fuzz has found before."""
        return [f"{kind}: {self.refusals[kind]}" for kind in unknown(self.refusals)]

    def known_kinds(self) -> int:
        """How many kinds of refusals have been found before, and again."""
        return sum(map(is_known, self.refusals))

    def write_refusals(self, file: Path) -> None:
        """Write each kind, in a line of JSON, with its first answer and spec."""
        lines = (
            json.dumps({"kind": kind, "known": is_known(kind), **vars(refusal)})
            for kind, refusal in sorted(self.refusals.items())
        )
        file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
