"""Opens the web page in Chromium, as the user does."""

from __future__ import annotations

from pathlib import Path

from playwright.sync_api import Error, Page, sync_playwright

from demo.errors import StoryError
from demo.programs import chromium

SECONDS = 180
WIDTH, HEIGHT = 1000, 900
SHOWN = (
    "#facts dd",
    "#timeline svg, #timeline div, #timeline canvas",
    "#chart canvas",
    "#workers td",
    "#events td",
    "#logs:not(:empty)",
)
"""The parts of a job's page that have content."""


def open_job(address: str, job: str, picture: Path) -> str:
    """Open the page of a job and take a picture of it. Returns the text of the page.

    Raises StoryError when a part stays empty, or the page reports an error.
    """
    complaints: list[str] = []
    try:
        with sync_playwright() as driver:
            browser = driver.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
            page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT})
            page.on("pageerror", lambda error: complaints.append(str(error)))
            text = _look(page, address, job, picture)
            browser.close()
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
    return page.locator("#job-view").inner_text()
