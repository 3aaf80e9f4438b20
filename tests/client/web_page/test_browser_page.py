"""The page in a real browser: keyboard, names for screen readers, light and dark, many jobs, and
what hostile users write.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest

from regroup.web_page.cluster_source import READS_VOLUME
from regroup.web_page.page_answers import PageAnswers
from regroup.web_page.page_server import PageServer
from tests.support.browser import Chromium
from tests.support.page_source import HOSTILE, PageSource
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(180)]
LOOK_MILLISECONDS = 60_000
LEAST_CONTRAST = 4.5
"""Of text, by the guidelines for accessibility (WCAG, AA)."""
CONTRASTS = """() => {
  const luminance = (color) => {
    const parts = color.match(/[0-9.]+/g).slice(0, 3).map((part) => part / 255)
      .map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2];
  };
  const behind = (node) => {
    for (; node; node = node.parentElement) {
      const color = getComputedStyle(node).backgroundColor;
      if (!/, 0\\)$/.test(color)) return color;
    }
    return "rgb(255, 255, 255)";
  };
  const found = {};
  for (const node of document.querySelectorAll("body *:not(svg *)")) {
    const has_text = [...node.childNodes].some((n) => n.nodeType === 3 && n.data.trim());
    if (!has_text || !node.checkVisibility() || node.disabled) continue;
    const [a, b] = [getComputedStyle(node).color, behind(node)].map(luminance);
    const name = `${node.tagName}.${node.className}`;
    found[name] = Math.min(found[name] ?? 99, (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05));
  }
  return found;
}"""
UNNAMED = """() => [...document.querySelectorAll("input, button, a, [tabindex='0'], [role]")]
  .filter((node) => node.checkVisibility())
  .filter((node) => !(node.getAttribute("aria-label") || node.textContent.trim()
    || (node.labels && node.labels.length) || node.getAttribute("aria-labelledby")
    || node.getAttribute("role") === "status"))
  .map((node) => node.outerHTML)"""


@dataclass
class Opened:
    """The page in a tab, and what the browser reported about it."""

    page: Page
    base: str
    complaints: list[str] = field(default_factory=list)
    requested: set[str] = field(default_factory=set)
    """Hosts."""

    def watch(self) -> None:
        self.page.on("console", lambda message: self._say(message.type, message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.requested.add(urlsplit(request.url).netloc))
        self.page.set_default_timeout(LOOK_MILLISECONDS)

    def open_job(self, name: str = "team/job-0") -> None:
        self.page.get_by_role("link", name=name, exact=True).click()
        self.page.locator("#logs:not(:empty)").wait_for()
        self.page.locator("#checkpoints td").first.wait_for()

    def _say(self, kind: str, text: str) -> None:
        if kind in ("error", "warning"):
            self.complaints.append(text)


@contextmanager
def served(source: PageSource) -> Iterator[str]:
    """The address of a server in a thread of its own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    def wait_for(work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, loop).result(60)

    async def made() -> PageServer:
        return PageServer(PageAnswers(source))

    server = wait_for(made())
    try:
        yield wait_for(server.listen())
    finally:
        wait_for(server.close())
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    playwright = pytest.importorskip("playwright.sync_api", reason="no release for this Python")
    with playwright.sync_playwright() as driver:
        found = Chromium(driver.chromium, tmp_path_factory.mktemp("chromium"))
        yield found
        found.close()


@contextmanager
def opened(browser: Chromium, source: PageSource, **options: Any) -> Iterator[Opened]:
    """The page; at the end, nothing may have failed or have come from elsewhere."""
    with served(source) as address, browser.new_context(**options) as context:
        base = address.partition("/?")[0]
        tab = Opened(context.new_page(), base)
        tab.watch()
        tab.page.goto(address)
        tab.page.locator("#jobs a").first.wait_for()
        assert tab.page.url == f"{base}/"
        yield tab
        assert not tab.complaints
        assert tab.requested == {urlsplit(base).netloc}


def test_what_users_write_is_text(browser: Chromium) -> None:
    with opened(browser, PageSource()) as tab:
        tab.open_job()
        for place in ("#job-message", "#logs", "#events", "#checkpoints"):
            assert HOSTILE in tab.page.locator(place).inner_text()
        assert tab.page.locator("img, iframe, object").count() == 0
        assert tab.page.title() == "team/job-0: Running"


def visit(browser: Chromium, *, killed: bool) -> None:
    with browser.new_context() as context:
        page = context.new_page()
        if killed:
            browser.kill()
            page.wait_for_event("close", timeout=LOOK_MILLISECONDS)
        page.goto("about:blank")


def test_a_browser_that_ends_says_why_and_another_one_takes_its_place(browser: Chromium) -> None:
    """Where memory is short the kernel kills browsers first: one test may fail by that, not all."""
    with pytest.raises(AssertionError, match=r"(?s)the browser has ended: .*exit code 137"):
        visit(browser, killed=True)
    started = browser.started
    visit(browser, killed=False)
    assert browser.started == started + 1


def test_a_thousand_jobs_are_paged_and_filtered_by_keyboard(browser: Chromium) -> None:
    with opened(browser, PageSource(count=1000)) as tab:
        page = tab.page
        assert page.locator("#count").inner_text() == "1000 jobs"
        assert page.locator("#jobs tr").count() == 100
        page.get_by_role("button", name="Next page").focus()
        page.keyboard.press("Enter")
        page.get_by_text("101 to 200 of 1000").wait_for()
        page.get_by_label("Filter by name or phase").focus()
        page.keyboard.type("job-777")
        page.get_by_text("1 to 1 of 1").wait_for()
        assert page.locator("#jobs a").all_inner_texts() == ["team/job-777"]


def test_a_job_is_reached_by_the_keyboard_alone(browser: Chromium) -> None:
    with opened(browser, PageSource()) as tab:
        page = tab.page
        focused = []
        for _ in range(5):
            page.keyboard.press("Tab")
            focused.append(page.evaluate("document.activeElement.textContent.trim().slice(0, 20)"))
        assert (focused[0], focused[1], focused[4]) == (
            "Skip to the content",
            "Regroup",
            "team/job-0",
        )
        page.keyboard.press("Enter")
        page.locator("#facts dd").first.wait_for()
        assert page.evaluate("document.activeElement.id") == "job-title"
        page.go_back()
        page.locator("#list-view").wait_for()
        assert page.evaluate("document.activeElement.id") == "content"


def test_a_screen_reader_finds_every_part_by_its_name(browser: Chromium) -> None:
    with opened(browser, PageSource()) as tab:
        page = tab.page
        assert page.get_by_role("columnheader", name="Goodput").is_visible()
        assert page.get_by_role("rowheader", name="team/job-0").is_visible()
        assert not page.evaluate(UNNAMED)
        tab.open_job()
        assert page.get_by_role("heading", name="team/job-0").is_visible()
        for name in ("Time line", "Loss", "Workers and ranks", "Checkpoints", "Events", "Logs"):
            assert page.get_by_role("heading", name=name, exact=True).is_visible()
        assert page.get_by_role("img", name="2 recoveries from").is_visible()
        chart = "Loss over time, from 3.0000 to 2.0100, up to step 99"
        assert page.get_by_role("img", name=chart).is_visible()
        assert page.locator("#chart canvas").is_visible()
        assert page.get_by_role("region", name="Log lines").is_visible()
        assert page.get_by_role("cell", name="gpt-w1-1 on n2 is lost").count() == 2
        assert not page.evaluate(UNNAMED)


@pytest.mark.parametrize("knows_steps", [True, False])
def test_workers_have_a_column_of_steps_where_these_are_known(
    browser: Chromium, knows_steps: bool
) -> None:
    with opened(browser, PageSource(knows_steps=knows_steps)) as tab:
        tab.open_job()
        table = tab.page.get_by_role("table").filter(has=tab.page.locator("#workers"))
        assert table.get_by_role("columnheader", name="Step").count() == knows_steps
        assert table.get_by_role("cell", name="120").count() == 3 * knows_steps
        assert table.get_by_role("cell", name="job-0-w2-1").is_visible()


def test_the_loss_of_a_job_that_rests_is_read_when_it_is_asked_for(browser: Chromium) -> None:
    """By the keyboard. What goes wrong stays to be read, and can be tried again."""
    source = PageSource(rests=True, kept_error="job job-0 cannot be read: it has no claim")
    with served(source) as address, browser.new_context() as context:
        page = context.new_page()
        page.set_default_timeout(LOOK_MILLISECONDS)
        page.goto(address)
        page.get_by_role("link", name="team/job-0", exact=True).click()
        button = page.get_by_role("button", name=READS_VOLUME)
        button.press("Enter")
        page.get_by_text(source.kept_error).wait_for()
        read = source.reads["series"]
        page.wait_for_function("() => !document.getElementById('read-series').disabled")
        wait_until("the page to read on", lambda: source.reads["series"] > read + 1)
        assert page.get_by_text(source.kept_error).is_visible()
        source.kept_error = ""
        button.press("Enter")
        page.get_by_role("img", name="Loss over time, from 3.0000 to 2.0100").wait_for()
        page.locator("#chart canvas").wait_for()
        assert not button.is_visible()


def test_text_can_be_read_in_light_and_in_dark(browser: Chromium) -> None:
    backs = set()
    for scheme in ("light", "dark"):
        with opened(browser, PageSource(), color_scheme=scheme) as tab:
            pages = [tab.page.evaluate(CONTRASTS)]
            tab.open_job()
            pages.append(tab.page.evaluate(CONTRASTS))
            backs.add(tab.page.evaluate("getComputedStyle(document.body).backgroundColor"))
            faint = {
                name: ratio
                for found in pages
                for name, ratio in found.items()
                if ratio < LEAST_CONTRAST
            }
            assert not faint
    assert len(backs) == 2


def test_the_page_is_live_and_says_when_it_is_not(browser: Chromium) -> None:
    source = PageSource()
    with served(source) as address, browser.new_context() as context:
        page = context.new_page()
        page.set_default_timeout(LOOK_MILLISECONDS)
        page.goto(address)
        page.get_by_role("link", name="team/job-0", exact=True).click()
        page.get_by_text(f"rank 0: {HOSTILE}").wait_for()
        page.evaluate("getSelection().selectAllChildren(document.getElementById('events'))")
        source.lines = ["rank 0: a new line", "rank 1: of another rank"]
        page.get_by_text("of another rank").wait_for()
        assert "WorkerLost" in page.evaluate("getSelection().toString()")  # it can be copied
        page.get_by_label("Only rank").fill("0")
        page.get_by_text("of another rank").wait_for(state="hidden")
        source.error = "the API server does not answer"
        page.get_by_role("status").get_by_text(source.error).wait_for()
        source.error = ""
        page.get_by_role("status").get_by_text("live", exact=True).wait_for()
        context.set_offline(True)
        page.get_by_text("not connected").wait_for()
