"""Which patterns are possible, and what they read of a line."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regroup_trainer.protocol import progress_pattern
from regroup_trainer.protocol.progress_pattern import (
    LINE_BYTES,
    Found,
    ProgressPattern,
    find_problem,
)
from tests.support.least_time import least_cpu_seconds
from tests.support.optional_packages import needs_re2

USUAL = r"step (?P<step>[\d,_]+)(/(?P<total>\S+))?( loss (?P<loss>\S+))?"
TQDM = r"\| *(?P<step>\d+)/(?P<total>\d+) \[.*loss=(?P<loss>[^,\]]+)"


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("step 12", Found(12, 0, None)),
        ("epoch 3 step 12/100 loss 1.2e-3", Found(12, 100, 0.0012)),
        ("step 12,000/1_000_000", Found(12_000, 1_000_000, None)),
        ("step 7/many loss 0.5", Found(7, 0, 0.5)),
        ("step 7 loss -inf", Found(7, 0, -math.inf)),
        ("step 7 loss low", Found(7, 0, None)),
        ("step 7 loss " + "1" * 40, Found(7, 0, None)),
        ("step 9007199254740991", Found(2**53 - 1, 0, None)),
        ("step 9007199254740992", None),
        ("step " + "9" * 4000, None),
        ("step ,", None),
        ("step 12,", Found(12, 0, None)),
        ("step 1,5", None),
        ("step 1,00,0", None),
        ("step 1,000_000", None),
        ("step ,,5,,", None),
        ("step __1", None),
        ("nothing of it", None),
    ],
)
@needs_re2
def test_a_line_says_what_can_be_read_of_it(line: str, found: Found | None) -> None:
    assert ProgressPattern(USUAL).find(line.encode()) == found


@needs_re2
def test_a_loss_may_be_no_number() -> None:
    found = ProgressPattern(USUAL).find(b"step 7 loss nan")
    assert found is not None
    assert found.loss is not None
    assert math.isnan(found.loss)


@needs_re2
def test_a_drawing_of_tqdm_is_read() -> None:
    drawn = " 12%|█▎        | 12/100 [00:01<00:08, 10.0it/s, loss=0.25]".encode()
    assert ProgressPattern(TQDM).find(drawn) == Found(12, 100, 0.25)


@needs_re2
def test_bytes_that_are_no_text_hurt_nobody() -> None:
    assert ProgressPattern(USUAL).find(b"\xff\xfe step 3 \x00") == Found(3, 0, None)


@needs_re2
def test_only_the_beginning_of_a_line_is_looked_at() -> None:
    pattern = ProgressPattern(USUAL)
    assert pattern.find(b"x" * (LINE_BYTES - 6) + b"step 3") == Found(3, 0, None)
    assert pattern.find(b"x" * LINE_BYTES + b"step 3") is None


@pytest.mark.parametrize(
    "pattern", [USUAL, TQDM, r"(?i)it[(?=] (?P<step>\d+)\\1", r"[{,5}]\{,5} (?P<step>\d+)"]
)
def test_a_usual_pattern_is_possible(pattern: str) -> None:
    assert find_problem(pattern) is None


REFUSED = {
    "x" * 257: "has 257 characters: at most 256",
    r"(?P<step>\d": "is no regular expression: missing )",
    r"step (\d+)": r"has no group 'step': write (?P<step>\d+)",
    r"(?P<step>\d+) (?P<los>\d+)": "has a group 'los': known are step, total, loss",
    r"(?P<step>\d+)(?=/)": "'(?' is not possible",
    r"(?<!x)(?P<step>\d+)": "'(?' is not possible",
    r"(?P<step>\d)(?P=step)": "'(?' is not possible",
    r"(?P<step>\d)\1": r"'\\1' is not possible",
    r"(?P<step>\d++)": "'++' is not possible",
    r"(?P<step>\d{,5})": "'{,5}' is no repetition in RE2: write {0,5}",
    r"(?P<step>\d+)x{,}": "'{,}' is no repetition in RE2: write {0,}",
    "(?P<step>\\d+)\ud800": "holds half of a character",
}


@pytest.mark.parametrize("pattern", REFUSED)
@pytest.mark.parametrize("is_there", [True, False], ids=["with RE2", "without RE2"])
def test_a_pattern_is_refused_with_what_is_wrong(
    pattern: str, is_there: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress_pattern, "has_re2", lambda: is_there)
    problem = find_problem(pattern)
    assert problem is not None
    assert REFUSED[pattern] in problem


@pytest.mark.parametrize("pattern", [r"(?P<step>(\d{100}){100})", "(?P<step>" + ".{999}" * 9 + ")"])
@needs_re2
def test_a_pattern_that_is_too_large_for_re2_is_refused(pattern: str) -> None:
    assert "is no regular expression of RE2" in (find_problem(pattern) or "")


@pytest.mark.parametrize("pattern", ["(?P<step>.*){1000}", r"(?P<step>[\w ]{1,120}){1,8}="])
@needs_re2
def test_a_pattern_that_takes_too_long_for_each_line_is_refused(pattern: str) -> None:
    assert "would take too long for each line: it has " in (find_problem(pattern) or "")


@pytest.mark.parametrize(
    "pattern",
    [r"(?P<step>\w{1,200})=", "((a?){50}){4}a{170}(?P<step>b)", "(?P<step>" + "(.*)" * 50 + ")x"],
)
@needs_re2
def test_what_is_possible_takes_a_moment_for_each_line(pattern: str) -> None:
    assert find_problem(pattern) is None
    program = ProgressPattern(pattern)
    lines = (b"a" * LINE_BYTES, b"ab" * (LINE_BYTES // 2), "é".encode() * (LINE_BYTES // 2))
    assert least_cpu_seconds(lambda: [program.find(line) for line in lines], 1.0) < 1.0


@needs_re2
def test_a_pattern_that_re2_reads_otherwise_is_refused() -> None:
    problem = find_problem(r"[[:digit:](?P<step>\d+)]")
    assert "means something else in RE2 than in Python" in (problem or "")


@settings(max_examples=300, deadline=None)
@given(
    pattern=st.lists(
        st.sampled_from([*"()[]|*+?^$.a", "(?P<step>", "(?P<loss>", "(?:", "{,3}", "{2,900}", "[^"])
        | st.sampled_from([r"\d", r"\Q", r"\1", r"\x", r"\p"])
        | st.text(st.characters(codec=None), max_size=2),
        max_size=12,
    ).map(lambda parts: "(?P<step>\\d+)" + "".join(parts)),
    line=st.binary(max_size=40),
)
@needs_re2
def test_every_pattern_has_a_problem_or_can_be_used(pattern: str, line: bytes) -> None:
    problem = find_problem(pattern)
    if problem is None:
        ProgressPattern(pattern).find(line)
    else:
        assert len(problem.encode()) < 1000


@needs_re2
def test_a_pattern_on_which_backtracking_never_ends_takes_a_moment() -> None:
    pattern, line = ProgressPattern(r"(?P<step>(a|aa)+)$"), b"a" * (LINE_BYTES - 1) + b"!"
    assert pattern.find(line) is None
    assert least_cpu_seconds(lambda: pattern.find(line), 5.0) < 5.0
