"""Who may load the web page: whoever has opened the address that was printed, in one browser.

Other users of the machine reach the port too, and pages of other sites can have a browser send
requests to it. The token of the address counts once; behind it stands a cookie. A page that has its
own name resolve to 127.0.0.1 is found out by the Host header.
"""

from __future__ import annotations

import hmac
import secrets
from dataclasses import dataclass, field

TOKEN = "token"
"""The parameter of the address."""


def _secret() -> str:
    return secrets.token_urlsafe(32)


@dataclass
class PageAccess:
    """The secrets of one server."""

    port: int
    _token: str = field(default_factory=_secret)
    _session: str = field(default_factory=_secret)
    _is_used: bool = False

    @property
    def address(self) -> str:
        """What is printed, and opened in the browser."""
        return f"http://127.0.0.1:{self.port}/?{TOKEN}={self._token}"

    @property
    def cookie_name(self) -> str:
        """Cookies do not know ports: two servers must not share one."""
        return f"regroup-ui-{self.port}"

    def is_own_host(self, host: str) -> bool:
        """Whether the Host header names this server. Browsers leave out the port 80."""
        ports = (f":{self.port}", *([""] if self.port == 80 else []))
        return host in {f"{name}{port}" for name in ("127.0.0.1", "localhost") for port in ports}

    def is_own_page(self, site: str | None) -> bool:
        """Whether the page itself asks, or the user, as the Sec-Fetch-Site header of browsers says.
        A page of another port of 127.0.0.1 is of the same site, and the cookie goes along.
        """
        return site in (None, "same-origin", "none")

    def has_session(self, cookie: str | None) -> bool:
        """Whether the cookie is the one that was given."""
        return self._is_used and _equal(cookie, self._session)

    def exchange(self, token: str) -> str | None:
        """The cookie for the token; None for a wrong one, and at the second time."""
        if self._is_used or not _equal(token, self._token):
            return None
        self._is_used = True
        return self._session


def _equal(given: str | None, secret: str) -> bool:
    return hmac.compare_digest((given or "").encode(errors="replace"), secret.encode())
