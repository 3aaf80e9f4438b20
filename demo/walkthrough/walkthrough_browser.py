"""Opens the web page in Chromium, as the user does."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Error, Page, sync_playwright

from demo.errors import StoryError
from demo.programs import chromium

SECONDS = 300
WIDTH, HEIGHT = 920, 1190
SHOWN = (
    "#facts dd",
    "#timeline > *",
    "#chart canvas",
    "#workers td",
    "#events td",
    "#logs:not(:empty)",
)
"""The parts of a job's page that have content."""


def photograph(page: Path, picture: Path) -> None:
    """Take a picture of a whole page of this machine. Raises StoryError."""
    try:
        with chromium_page() as tab:
            tab.goto(page.as_uri())
            tab.screenshot(path=picture, full_page=True)
    except Error as error:
        raise StoryError(f"Chromium cannot show {page}: {error}") from error


@contextmanager
def chromium_page() -> Iterator[Page]:
    """An empty page in a browser of its own."""
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        try:
            yield browser.new_page(viewport={"width": WIDTH, "height": HEIGHT})
        finally:
            browser.close()


def open_job(address: str, job: str, picture: Path) -> str:
    """Open the page of a job and take a picture of it. Returns the text of the page.

    Raises StoryError when a part stays empty, or the page reports an error.
    """
    complaints: list[str] = []
    try:
        with chromium_page() as page:
            page.on("pageerror", lambda error: complaints.append(str(error)))
            text = _look(page, address, job, picture)
    except Error as error:
        raise StoryError(f"the web page does not show {job}: {error}") from error
    if complaints:
        raise StoryError(f"the web page has errors: {complaints}")
    return text


def _look(page: Page, address: str, job: str, picture: Path) -> str:
    page.set_default_timeout(SECONDS * 1000)
    page.goto(address)
    page.get_by_role("link", name=job, exact=True).click()
    for part in SHOWN:
        page.locator(part).first.wait_for()
    page.screenshot(path=picture)
    text: str = page.locator("#job-view").inner_text()
    return text
