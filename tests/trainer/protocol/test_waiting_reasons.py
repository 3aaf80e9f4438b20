"""The reasons why a job waits, and the page that says what to do about each."""

from __future__ import annotations

import re
from pathlib import Path

from regroup_trainer.protocol.waiting_reasons import WaitingReason

PAGE = Path(__file__).resolve().parents[3] / "docs" / "concepts" / "waiting.md"


def test_reasons_are_words_as_kubernetes_has_them() -> None:
    assert all(re.fullmatch(r"([A-Z][a-z]+)+", reason.name) for reason in WaitingReason)


def test_the_page_explains_every_reason_in_the_words_of_the_table() -> None:
    entries = re.findall(r"^- `(\w+)`: (.+\n(?:  .+\n)*)", PAGE.read_text(), re.MULTILINE)
    meanings = {name: " ".join(text.split()).partition(". ")[0] for name, text in entries}
    assert len(entries) == len(meanings)
    assert meanings == {reason.name: reason.value for reason in WaitingReason}
