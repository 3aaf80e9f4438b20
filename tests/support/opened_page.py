"""The web page of `ui`, as a browser reads it that has opened the printed address."""

from __future__ import annotations

import json
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Any
from urllib.request import HTTPCookieProcessor, ProxyHandler, build_opener


class OpenedPage:
    """What a browser reads that has opened the address."""

    def __init__(self, address: str) -> None:
        jar = CookieJar(DefaultCookiePolicy(rfc2965=True))
        self._base = address.partition("/?")[0]
        self._opener = build_opener(ProxyHandler({}), HTTPCookieProcessor(jar))
        with self._opener.open(address, timeout=60) as first:
            assert first.status == 200

    def read(self, path: str) -> Any:
        """What the page asks its server for."""
        with self._opener.open(self._base + path, timeout=60) as answer:
            return json.loads(answer.read())
