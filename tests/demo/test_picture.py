"""The picture of the dashboard, from a real Prometheus through a real Chromium."""

from __future__ import annotations

import dataclasses
import re
import struct
from pathlib import Path

import pytest

from demo import dashboard, pictures
from demo.errors import NoDataError, QueryError
from demo.job_dashboard import build
from demo.picture.__main__ import picture
from demo.picture.chart import plain, scale, stack
from demo.picture.data import DrawnSeries, Source
from demo.picture.fields import Field
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


def test_a_rate_is_shown_with_what_it_counts(run: Source) -> None:
    drawn, _ = page(build(), run)
    figure = drawn.partition("<h2>Throughput</h2>")[2].partition("</section>")[0]
    assert re.search(r">3\d\.\d<", figure)
    assert ">tokens/s<" in figure


def test_a_lost_rank_0_is_a_gap_in_the_loss_not_a_line_across_it(run: Source) -> None:
    drawn, _ = page(build(), run)
    loss = re.search(r"<h2>Loss</h2><svg.*?</svg>", drawn)
    assert loss
    strokes = re.findall(r'<path d="([^"]*)" fill="none" stroke="#5794f2"', loss[0])
    assert strokes[0].count("M") == 2


def test_every_board_is_drawn_from_the_real_run(real_run: Source) -> None:
    for name, build_board in dashboard.DASHBOARDS.items():
        source = pictures.source_of(real_run.server, real_run.window, name)
        drawn, _ = page(build_board(), source)
        assert drawn.count("<section") == len(build_board()["panels"])


def test_recoveries_are_shown_that_a_former_operator_counted(real_run: Source) -> None:
    (table,) = [panel for panel in build()["panels"] if panel["title"] == "Recoveries"]
    source = dataclasses.replace(real_run, variables=pictures.VARIABLES["job"])
    assert {"application", "infrastructure"} <= {row["cause"] for row in source.rows(table)}


def test_counts_have_whole_ticks_and_memory_round_ones() -> None:
    def marks(unit: str, decimals: int | None, value: float) -> list[float]:
        field = Field("", {"unit": unit, "decimals": decimals, "min": 0})
        return scale([plain(field, DrawnSeries("", [value]))])

    assert marks("none", 0, 1.0) == [0, 1]
    assert marks("none", None, 1.0) == pytest.approx([0, 0.2, 0.4, 0.6, 0.8, 1])
    assert marks("bytes", None, 70 * 2**20) == [2**20 * tick for tick in (0, 20, 40, 60, 80)]
    assert marks("s", None, 240.0) == [0, 60, 120, 180, 240]


def test_stacked_counts_add_up_with_those_that_are_missing() -> None:
    field = Field("", {})
    series = [DrawnSeries("a", [1.0, None]), DrawnSeries("b", [2.0, 3.0])]
    first, second = stack([field, field], series, shares=False)
    assert (first.values, second.values, second.base) == ([1, 0], [3, 3], [1, 0])


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


@pytest.mark.long
@pytest.mark.cluster
def test_the_picture_is_a_png_of_the_whole_page(run: Source, tmp_path: Path) -> None:
    picture(build(), run, tmp_path / "dashboard.png")
    content = (tmp_path / "dashboard.png").read_bytes()
    assert content.startswith(b"\x89PNG")
    width, height = struct.unpack(">II", content[16:24])
    assert width == 2400
    assert height > 1800
