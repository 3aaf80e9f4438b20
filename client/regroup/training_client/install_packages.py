"""The program that installs packages before a worker starts: `install_packages.py FOLDER NAME...`.

It is sent with the job, runs in an init container under the Python of any image, and so uses only
the standard library. Only what the image lacks is installed: `pip --target` alone would install all
dependencies again, torch among them.
"""

from __future__ import annotations

import base64
import importlib.util
import json
import os
import re
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, unquote, urlsplit

REACH_SECONDS = 5.0
"""For a connection to the index."""
REFUSALS = (401, 403)
TRUSTED = "PACKAGE_INDEX_TRUSTED"
"""Set where the job's owner trusts an index without a certificate that pip can check."""


def main(folder: str, packages: list[str]) -> int:
    """Install into the folder; returns pip's exit code."""
    pip = pip_command()
    if not pip:
        print(
            "packages: this image has no pip: choose an image with pip, or one that has "
            f"{' '.join(packages)} already",
            file=sys.stderr,
        )
        return 2
    quiet = [
        "--disable-pip-version-check",
        "--no-cache-dir",
        "--no-input",
        *trust_options(os.environ),
    ]
    report = Path(folder) / ".report.json"
    asked = [*pip, "install", *quiet, "--dry-run", "--report", str(report), *packages]
    if code := subprocess.call(asked):
        if problem := index_problem(os.environ):
            print(f"packages: {' '.join(packages)}: {problem}", file=sys.stderr)
        return code
    missing = [wanted(item) for item in json.loads(report.read_text())["install"]]
    report.unlink()
    if not missing:
        print("packages: the image has them all")
        return 0
    into = ["--no-deps", "--upgrade", "--target", folder]  # a former try may have begun there
    return subprocess.call([*pip, "install", *quiet, *into, *missing])


def trust_options(variables: Mapping[str, str]) -> list[str]:
    """pip's option for an index that the job's owner trusts."""
    host = re.sub(r".*?//(?:[^/]*@)?([^/]*).*", r"\1", variables.get("PIP_INDEX_URL", ""))
    return ["--trusted-host", host] if variables.get(TRUSTED) else []


def index_problem(variables: Mapping[str, str]) -> str:
    """Why pip cannot use the index that the job names; empty where it can, or nothing is known. pip
    itself says of an index that is away, or that it does not trust, that it lacks the package.
    """
    try:
        index = urlsplit(variables.get("PIP_INDEX_URL", ""))
        host, port = index.hostname, index.port or (80 if index.scheme == "http" else 443)
    except ValueError:
        return "the address of the index is none: see package_index, or key index-url of its Secret"
    if host and index.scheme == "http" and not (_is_of_pod(host) or variables.get(TRUSTED)):
        return (
            f"pip does not trust the index {host}:{port}, which is reached without TLS: give it an "
            "https address, or set PackageIndex(trusted=True) where nobody can come between"
        )
    if not host or urllib.request.getproxies():
        return ""
    try:
        socket.create_connection((host, port), REACH_SECONDS).close()
    except OSError as error:
        return (
            f"the index {host}:{port} is not reached from this pod ({error}): check its address, "
            "and the network policies between"
        )
    if (status := refusal_of(index)) is not None:
        return (
            f"the index {host}:{port} refuses this pod (HTTP status {status}): give a name and a "
            "password that it accepts, in key index-url of its Secret"
        )
    return ""


def refusal_of(index: SplitResult) -> int | None:
    """401 or 403 where the index answers so to the name and password of its address."""
    place = index._replace(netloc=index.netloc.rpartition("@")[2], query="", fragment="")
    request = urllib.request.Request(place.geturl())
    if index.username is not None:
        words = f"{unquote(index.username)}:{unquote(index.password or '')}"
        request.add_header("Authorization", f"Basic {base64.b64encode(words.encode()).decode()}")
    try:
        urllib.request.urlopen(request, timeout=REACH_SECONDS).close()
    except urllib.error.HTTPError as error:
        error.close()
        return error.code if error.code in REFUSALS else None
    except (OSError, ValueError):  # of certificates, for instance: pip has said it
        pass
    return None


def _is_of_pod(host: str) -> bool:
    """Whether it is an address of the pod itself, which pip trusts."""
    return host in ("localhost", "::1") or host.startswith("127.")


def pip_command() -> list[str]:
    """The pip of this Python, or that of the Python which its virtual environment was made from."""
    if importlib.util.find_spec("pip"):
        return [sys.executable, "-m", "pip"]
    base = os.path.join(sys.base_prefix, "bin", "python3")  # noqa: PTH118 - as old Pythons have it
    has_pip = subprocess.call([base, "-c", "import pip"], stderr=subprocess.DEVNULL) == 0
    return [base, "-m", "pip", "--python", sys.executable] if has_pip else []


def wanted(item: dict[str, Any]) -> str:
    """What to pass to pip of an entry of its report."""
    metadata = item["metadata"]
    if item.get("is_direct"):
        return f"{metadata['name']} @ {item['download_info']['url']}"
    return f"{metadata['name']}=={metadata['version']}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
