"""The package indexes of this machine as settings of uv, which does not read pip's settings."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping

_FROM_PIP = {"index-url": "UV_DEFAULT_INDEX", "extra-index-url": "UV_INDEX"}
_PASSED_ON = ("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")


def uv_environment() -> dict[str, str]:
    """Return the environment variables for uv: the caller's package indexes, CA
    bundle and proxies.
    """
    bundle = ca_bundle(os.environ)
    return {**index_settings_of_host(), **({"SSL_CERT_FILE": bundle} if bundle else {})}


def index_settings_of_host() -> dict[str, str]:
    """Return the package indexes and proxies of pip and uv on this machine as variables of uv."""
    return index_settings(os.environ, _pip_settings())


def index_settings(environment: Mapping[str, str], pip: Mapping[str, str]) -> dict[str, str]:
    """Translate pip's settings for uv. The caller's settings of uv take precedence."""
    settings = {_FROM_PIP[name]: value for name, value in pip.items() if name in _FROM_PIP}
    own = {
        name: value
        for name, value in environment.items()
        if name.startswith("UV_") and "INDEX" in name
    }
    proxies = {name: environment[name] for name in _PASSED_ON if name in environment}
    return {**settings, **own, **proxies}


def ca_bundle(environment: Mapping[str, str]) -> str | None:
    """Return the CA bundle from the caller's environment, or None."""
    return (
        environment.get("SSL_CERT_FILE")
        or environment.get("PIP_CERT")
        or environment.get("REQUESTS_CA_BUNDLE")
    )


def _pip_settings() -> dict[str, str]:
    """Return pip's effective settings (files and PIP_ variables), without section names."""
    listing = [sys.executable, "-m", "pip", "config", "list"]
    shown = subprocess.run(listing, capture_output=True, text=True, check=False).stdout
    pairs = (line.split("=", 1) for line in shown.splitlines() if "=" in line)
    return {
        name.split(".")[-1]: value.strip("'\"").replace("\\n", " ").strip() for name, value in pairs
    }
