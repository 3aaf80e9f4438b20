"""Asks, before each request that changes something is sent, whether this process may change it."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import aiohttp

Guard = Callable[[], float]
"""Returns for how many seconds from now on this process may write. It does not return where that is
none.
"""
_WRITES = "writes"


def unguarded() -> float:
    """For a process that needs nobody's leave."""
    return math.inf


def guarded(method: str, guard: Guard, timeout: aiohttp.ClientTimeout) -> dict[str, Any]:
    """Arguments of a request in a session with `checks`. A write ends while it is allowed."""
    if method == "GET":
        return {"timeout": timeout}
    limited = aiohttp.ClientTimeout(
        total=min(timeout.total or math.inf, guard()),
        connect=timeout.connect,
        sock_connect=timeout.sock_connect,
        ceil_threshold=math.inf,  # longer ones would be rounded up
    )
    return {"timeout": limited, "trace_request_ctx": _WRITES}


def checks(guard: Guard) -> list[aiohttp.TraceConfig]:
    """For a session: `guard` is asked again once there is a connection, which may take seconds, and
    right before the request is sent.
    """

    async def check(_session: Any, context: SimpleNamespace, _parameters: Any) -> None:
        if context.trace_request_ctx == _WRITES:
            guard()

    trace = aiohttp.TraceConfig()
    trace.on_connection_create_end.append(check)
    trace.on_connection_reuseconn.append(check)
    return [trace]
