"""The picture of the dashboard, from a real Prometheus through a real Chromium."""

from __future__ import annotations

import dataclasses
import re
import struct
from pathlib import Path

import pytest

from demo.errors import NoDataError, QueryError
from demo.job_dashboard import build
from demo.picture.__main__ import picture
from demo.picture.data import Source
from demo.picture.page import page
from demo.promql import Server


def test_the_page_shows_phase_loss_and_recoveries(run: Source) -> None:
    drawn, height = page(build(), run)
    for expected in (
        "Succeeded",
        "Recovering",
        "training",
        "infrastructure",
        "Checkpoint",
        "2.05",
        "gpt-demo",
    ):
        assert f">{expected}<" in drawn, expected
    assert height > 1000


def test_a_lost_rank_0_is_a_gap_in_the_loss_not_a_line_across_it(run: Source) -> None:
    drawn, _ = page(build(), run)
    loss = re.search(r"<h2>Loss</h2><svg.*?</svg>", drawn)
    assert loss
    strokes = re.findall(r'<path d="([^"]*)" fill="none" stroke="#5794f2"', loss[0])
    assert strokes[0].count("M") == 2


def test_a_query_without_data_is_named_with_its_panel(run: Source) -> None:
    other = dataclasses.replace(run, variables={"namespace": "demo", "trainingjob": "another"})
    board = build()
    board["annotations"]["list"] = []
    with pytest.raises(
        NoDataError, match=r"panel 'Phase' has no data for max by \(phase\).*another"
    ):
        page(board, other)


def test_an_expression_that_prometheus_refuses_is_shown(run: Source) -> None:
    with pytest.raises(QueryError, match=r"refused 'max\(': .*parse error"):
        run.server.range("max(", run.window)


def test_a_prometheus_that_is_not_there_is_named() -> None:
    with pytest.raises(QueryError, match=r"127.0.0.1:9 does not answer"):
        Server("http://127.0.0.1:9").instant("up", 0)


@pytest.mark.cluster
def test_the_picture_is_a_png_of_the_whole_page(run: Source, tmp_path: Path) -> None:
    picture(run, tmp_path / "dashboard.png")
    content = (tmp_path / "dashboard.png").read_bytes()
    assert content.startswith(b"\x89PNG")
    width, height = struct.unpack(">II", content[16:24])
    assert width == 2400
    assert height > 1800
