"""Serves the web page until Ctrl-C, and opens the browser."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import webbrowser

import click

from regroup.web_page.job_source import JobSource
from regroup.web_page.page_answers import PageAnswers, in_thread
from regroup.web_page.page_server import PageServer

END_SECONDS = 0.5
"""For open connections, after Ctrl-C."""


async def serve_page(source: JobSource, port: int, *, open_browser: bool) -> None:
    """Print the address, and serve until SIGINT or SIGTERM. Raises OSError for a port that is in
    use.
    """
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        # Also where a shell has started this in the background, and SIGINT would be ignored.
        loop.add_signal_handler(number, stop.set)
    server = PageServer(PageAnswers(source))
    address = await server.listen(port)
    click.echo(f"{source.title}: {address}")
    click.echo("The address works once, in one browser. Ctrl-C ends this.", err=True)
    opening = asyncio.ensure_future(_open(address)) if open_browser else None
    try:
        await stop.wait()
    finally:
        if opening is not None:
            opening.cancel()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(server.close(), END_SECONDS)


async def _open(address: str) -> None:
    """Open the browser of a desktop. Elsewhere one in the terminal would hide the address."""
    if any(os.environ.get(name) for name in ("BROWSER", "DISPLAY", "WAYLAND_DISPLAY")):
        with contextlib.suppress(webbrowser.Error, OSError):
            await in_thread(lambda: webbrowser.open(address))
