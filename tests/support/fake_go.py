"""A Go that compiles nothing, for tests of what is built when."""

from __future__ import annotations

from pathlib import Path

import pytest

FAKE_GO = """#!/bin/sh
# Answers its version, has every module, and builds by writing the output file; fails for the
# package in $FAIL.
for last; do :; done
case "$*" in
  *GOVERSION*) echo go1.99.0 ;;
  *"mod download"*) echo '{"Sum": "h1:of-the-module", "Dir": "/cache/module"}' ;;
  *build*) [ "$last" = "$FAIL" ] && exit 1
    while [ "$1" != -o ]; do shift; done; echo "$last" > "$2"; echo x >> "$COUNT" ;;
esac
"""


def install_fake_go(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Path:
    """Put it on the PATH, with an empty cache, all below `folder`. Returns the file that has a line
    per built program.
    """
    go = folder / "path" / "go"
    go.parent.mkdir()
    go.write_text(FAKE_GO)
    go.chmod(0o755)
    monkeypatch.setenv("PATH", str(go.parent), prepend=":")
    monkeypatch.setenv("REGROUP_CACHE", str(folder / "cache"))
    monkeypatch.setenv("COUNT", str(folder / "count"))
    return folder / "count"
