"""The inputs of an image and the hash that names it. Unchanged inputs give the same name and no new
build.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path

TARGETS = ("operator", "trainer")
_FILES = ("Dockerfile", ".dockerignore", "pyproject.toml", "LICENSE", "README.md",
          "requirements/build.txt",
          "tools/install_dependencies.sh", "tools/slim_torch.sh")  # fmt: skip
_FILES_OF = {"operator": ("requirements/injected-ranks.txt", "requirements/injected-agent.txt")}
_SOURCES = ("operator", "trainer", "client")


def content_hash(root: Path, target: str, arguments: Mapping[str, str]) -> str:
    """Return 16 hex digits over the inputs of image `target`: file names, contents and build
    arguments.
    """
    digest = hashlib.sha256()
    for name, value in sorted(arguments.items()):
        digest.update(f"{name}={value}\0".encode())
    for path in input_files(root, target):
        content = hashlib.sha256(path.read_bytes()).hexdigest()
        digest.update(f"{path.relative_to(root)} {content}\0".encode())
    return digest.hexdigest()[:16]


def input_files(root: Path, target: str) -> Iterator[Path]:
    """Yield the files that the Dockerfile reads for `target`, in a fixed order."""
    yield from (root / name for name in _FILES)
    yield root / "requirements" / f"{target}.txt"
    yield from (root / name for name in _FILES_OF.get(target, ()))
    for folder in _SOURCES:
        yield from sorted(
            path for path in (root / folder).rglob("*") if path.is_file() and _is_source(path)
        )


def _is_source(path: Path) -> bool:
    return path.suffix != ".pyc" and "__pycache__" not in path.parts
