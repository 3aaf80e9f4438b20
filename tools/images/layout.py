"""Exported images on disk: OCI layouts with uncompressed, hard-linked blobs. The newest two of each
target stay.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Protocol

_KEEP = 2
_NAME = "org.opencontainers.image.ref.name"
_CONTAINERD_NAME = "io.containerd.image.name"


class Exporter(Protocol):
    """A program that exports images: as an OCI layout, or with a `suffix` as another
    kind of file.
    """

    @property
    def suffix(self) -> str:
        """The suffix of the file. Empty for an OCI layout."""
        ...

    def export(self, name: str, destination: Path) -> None:
        """Write image `name` to `destination`. Existing blobs of a layout stay unchanged."""
        ...


def export(engine: Exporter, name: str, destination: Path) -> None:
    """Write image `name` to `destination`. On an error, `destination` does not exist.

    Blobs of older exports are linked and not copied.
    """
    unfinished = destination.with_name(f"{destination.name}.unfinished")
    remove(unfinished)
    if engine.suffix:
        engine.export(name, unfinished)
    else:
        _link_known_blobs(destination.parent, unfinished)
        engine.export(name, unfinished)
        _finish_layout(unfinished, name)
    unfinished.rename(destination)


def exports(folder: Path, target: str) -> list[Path]:
    """Return the complete exports of `target`, the newest first."""
    found = [path for path in folder.glob(f"{target}-*") if not path.name.endswith(".unfinished")]
    return sorted(found, key=lambda path: path.stat().st_mtime, reverse=True)


def find(folder: Path, target: str, tag: str) -> Path | None:
    """Return the complete export of `target` with this tag and make it the newest. None if there is
    none.
    """
    found = next((path for path in exports(folder, target) if tag_of(path, target) == tag), None)
    if found:
        os.utime(found)
    return found


def tag_of(export: Path, target: str) -> str:
    """Return the tag in an export's file name."""
    return export.name.removeprefix(f"{target}-").partition(".")[0]


def prune(folder: Path, target: str) -> list[Path]:
    """Remove all exports of `target` but the newest two. Returns the removed paths.

    The second newest stays only if it shares its largest layer with the newest. Otherwise, it would
    take gigabytes.
    """
    newest, *older = exports(folder, target)
    outdated = [
        path
        for path in older
        if path not in older[: _KEEP - 1] or _largest(path) != _largest(newest)
    ]
    for path in [*outdated, *folder.glob(f"{target}-*.unfinished")]:
        remove(path)
    return outdated


def remove(path: Path) -> None:
    """Remove a file or a folder if it exists."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def write_pointers(file: Path, images: dict[str, dict[str, str]]) -> None:
    """Write {target: {name, path}} to `file` atomically. Targets that are not in `images` keep
    their entry.
    """
    known = json.loads(file.read_text()) if file.exists() else {}
    file.parent.mkdir(parents=True, exist_ok=True)
    unfinished = file.with_suffix(".unfinished")
    unfinished.write_text(json.dumps({**known, **images}, indent=2) + "\n")
    unfinished.rename(file)


def _link_known_blobs(folder: Path, layout: Path) -> None:
    """Create `layout` with hard links to the blobs of all exports in `folder`. Only new blobs are
    then written.
    """
    blobs = layout / "blobs" / "sha256"
    blobs.mkdir(parents=True)
    for blob in folder.glob("*/blobs/sha256/*"):
        if ".unfinished" not in str(blob) and not (blobs / blob.name).exists():
            os.link(blob, blobs / blob.name)


def _finish_layout(layout: Path, name: str) -> None:
    """Set the image's name for containerd's importer and delete the blobs that it does not use."""
    index = json.loads((layout / "index.json").read_text())
    (entry,) = index["manifests"]
    entry["annotations"] = {_NAME: name, _CONTAINERD_NAME: name}
    (layout / "index.json").write_text(json.dumps(index))
    blobs = layout / "blobs" / "sha256"
    manifest = json.loads((blobs / _digest(entry)).read_text())
    used = {
        _digest(entry),
        _digest(manifest["config"]),
        *(_digest(layer) for layer in manifest["layers"]),
    }
    for blob in blobs.iterdir():
        if blob.name not in used:
            blob.unlink()


def _largest(export: Path) -> str:
    """Return the name of the largest blob of an OCI layout. For an archive, its own name."""
    blobs = list(export.glob("blobs/sha256/*")) or [export]
    return max(blobs, key=lambda blob: blob.stat().st_size).name


def _digest(descriptor: dict[str, str]) -> str:
    return descriptor["digest"].removeprefix("sha256:")
