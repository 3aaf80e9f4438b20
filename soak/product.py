"""Which commits have the same code of the product as this checkout."""

from __future__ import annotations

import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PATHS = (
    *("operator", "trainer", "client", "charts", "requirements", "Dockerfile"),
    *("tools/install_dependencies.sh", "tools/slim_torch.sh"),
)
"""What a soak tests, and what its images are made of. Its own code, tests and texts may change."""
DIRTY = "-dirty"


def commit(root: Path = ROOT) -> str:
    """That of the checkout, marked where files differ from it."""
    describe = ["describe", "--always", "--abbrev=40", f"--dirty={DIRTY}", "--exclude=*"]
    return _git(root, *describe).stdout.strip() or "unknown"


def is_same(commit: str, root: Path = ROOT) -> bool:
    """Whether the product has not changed since. Of a commit that is not known here, or of a
    checkout that differed from its commit, nobody can tell, and it counts as another.
    """
    known = not commit.endswith(DIRTY)
    return known and _git(root, "diff", "--quiet", commit, "--", *PATHS).returncode == 0


def _git(root: Path, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["git", *command], cwd=root, capture_output=True, text=True, check=False)
