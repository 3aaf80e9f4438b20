"""Marks of tests that need a package which some Pythons cannot have; see pyproject.toml."""

from __future__ import annotations

import sys

import pytest

needs_bpe = pytest.mark.skipif(
    sys.version_info >= (3, 14), reason="rs-bpe supports Python 3.11 to 3.13"
)
"""For byte-pair encodings: the extra `data`."""
needs_re2 = pytest.mark.skipif(
    sys.version_info >= (3, 15), reason="google-re2 supports Python 3.11 to 3.14"
)
"""For `spec.progressPattern`."""
