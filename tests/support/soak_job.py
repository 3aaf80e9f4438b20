"""What a sound job of a soak left behind, for tests of what judges it."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from soak import records
from soak.checker import Verdict, judge
from soak.evidence import Evidence, Sample
from soak.records import Number

BATCH = 6
FIRST, SECOND = (1, 1), (1, 2)
Json = dict[str, Any]


def line(step: int, generation: Number = FIRST, **changed: Any) -> Json:
    """A step as the history has it, with the fields that the checker does not read."""
    made = {
        "generation": list(generation),
        "step": step,
        "world": 3,
        "epoch": 0,
        "first": (step - 1) * BATCH,
        "count": BATCH,
        "hash": 1000 + step,
        "loss": 5 / step,
    }
    return {**made, **changed}


def link(generation: Number, parent: Number | None, step: int, **changed: Any) -> Json:
    """A generation's lineage record."""
    return {
        "generation": list(generation),
        "parent": list(parent) if parent else None,
        "resumed_from_step": step,
        "from_checkpoint": False,
        "data": {"samples": 100, "seed": 0, "global_batch_size": BATCH},
        **changed,
    }


class Written:
    """What a sound job wrote: steps 1 to 10 by one generation, 9 to 14 by the next, which resumed
    from step 8 and so made two steps again. A test changes it before it is judged.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.links = [link(FIRST, None, 0), link(SECOND, FIRST, 8)]
        self.first = [line(step) for step in range(1, 11)]
        self.second = [line(step, SECOND) for step in range(9, 15)]
        self.gaps: list[Json] = []
        self.began = {FIRST: 0.5, SECOND: 10.5}
        """Generation -> when it began, on the clock of the samples: a step takes a second."""
        self.evidence = Evidence(
            job="gpt",
            kind="fsdp",
            program="gpt",
            copy_size=None,
            snapshot_steps=5,
            checkpoint_steps=50,
            records=records.Records({}, {}),
            status={"goodput": {"lostSteps": 2}, "progress": {"step": 14}},
            recoveries=({"generation": "1.2", "resumedFromStep": 8, "lostSteps": 2},),
            reference={step: records._line(line(step)) for step in range(1, 15)},
            samples=tuple(Sample(float(step), step) for step in range(1, 15)),
        )

    def change(self, **fields: Any) -> None:
        """Change fields of the evidence."""
        self.evidence = replace(self.evidence, **fields)

    def verdict(self) -> Verdict:
        """Write the files, read them and judge."""
        return judge(self.written())

    def written(self) -> Evidence:
        """Write the files and read them."""
        for part in ("lineage", "history"):
            (self.folder / part).mkdir(exist_ok=True)
        for one in self.links:
            term, n = one["generation"]
            record = self.folder / "lineage" / f"{term}-{n}.json"
            record.write_text(json.dumps(one))
            os.utime(record, (self.began[term, n],) * 2)
        history = self.folder / "history"
        for name, lines in (("1-1", self.first), ("1-2", self.second)):
            text = "".join(json.dumps(one) + "\n" for one in lines)
            (history / f"{name}.jsonl").write_text(text)
        (history / "1-2.gaps").write_text("".join(json.dumps(one) + "\n" for one in self.gaps))
        return replace(self.evidence, records=records.read(self.folder))
