"""Exports on disk: what is known is linked, what is old is removed, nothing is half written."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import pytest

from tools.images import layout


class RecordedEngine:
    """Writes OCI layouts as skopeo does: a blob that is there already is left alone."""

    suffix = ""

    def __init__(self, layers: list[bytes]) -> None:
        self.layers = layers
        self.written: list[str] = []

    def export(self, name: str, destination: Path) -> None:
        """Write the layers, a configuration, a manifest and the index."""
        layers = [self._blob(destination, layer) for layer in self.layers]
        manifest = {"config": self._blob(destination, b"{}"), "layers": layers}
        entry = self._blob(destination, json.dumps(manifest).encode())
        (destination / "index.json").write_text(json.dumps({"manifests": [entry]}))

    def _blob(self, destination: Path, content: bytes) -> dict[str, str]:
        digest = hashlib.sha256(content).hexdigest()
        path = destination / "blobs" / "sha256" / digest
        if not path.exists():
            path.write_bytes(content)
            self.written.append(digest)
        return {"digest": f"sha256:{digest}"}


def export(folder: Path, name: str, *layers: bytes, age: int = 0) -> tuple[Path, RecordedEngine]:
    """Export an image of these layers, `age` seconds ago, and return the path and the engine."""
    engine = RecordedEngine(list(layers))
    path = folder / name
    layout.export(engine, f"localhost/{name}", path)
    os.utime(path, (path.stat().st_atime, path.stat().st_mtime - age))
    return path, engine


def test_a_layer_that_an_older_export_has_is_linked_and_not_written(tmp_path: Path) -> None:
    first, _ = export(tmp_path, "trainer-1", b"torch" * 100, b"old code")
    second, engine = export(tmp_path, "trainer-2", b"torch" * 100, b"new code")
    torch = hashlib.sha256(b"torch" * 100).hexdigest()
    assert torch not in engine.written
    assert (first / "blobs/sha256" / torch).stat().st_ino == (
        second / "blobs/sha256" / torch
    ).stat().st_ino


def test_blobs_of_other_images_are_not_kept_in_an_export(tmp_path: Path) -> None:
    export(tmp_path, "trainer-1", b"torch" * 100, b"old code")
    second, _ = export(tmp_path, "trainer-2", b"torch" * 100, b"new code")
    assert not (second / "blobs/sha256" / hashlib.sha256(b"old code").hexdigest()).exists()


def test_an_export_carries_its_name_for_containerd(tmp_path: Path) -> None:
    path, _ = export(tmp_path, "operator-1", b"code")
    (entry,) = json.loads((path / "index.json").read_text())["manifests"]
    assert entry["annotations"]["io.containerd.image.name"] == "localhost/operator-1"


def test_an_export_that_fails_leaves_nothing_under_its_name(tmp_path: Path) -> None:
    class Failing(RecordedEngine):
        def export(self, name: str, destination: Path) -> None:
            raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        layout.export(Failing([]), "localhost/x", tmp_path / "trainer-1")
    assert not layout.exports(tmp_path, "trainer")


def test_the_newest_two_exports_stay_if_they_share_the_large_layer(tmp_path: Path) -> None:
    for number, age in ((1, 30), (2, 20), (3, 10)):
        export(tmp_path, f"trainer-{number}", b"torch" * 100, b"code %d" % number, age=age)
    layout.prune(tmp_path, "trainer")
    assert [path.name for path in layout.exports(tmp_path, "trainer")] == ["trainer-3", "trainer-2"]


def test_an_older_export_with_another_large_layer_is_removed(tmp_path: Path) -> None:
    export(tmp_path, "trainer-1", b"old torch" * 100, age=10)
    export(tmp_path, "trainer-2", b"new torch" * 100)
    assert [path.name for path in layout.prune(tmp_path, "trainer")] == ["trainer-1"]


def test_pointers_of_targets_that_were_not_built_stay(tmp_path: Path) -> None:
    file = tmp_path / "build" / "images.json"
    layout.write_pointers(file, {"operator": {"name": "a", "path": "/a"}})
    layout.write_pointers(file, {"trainer": {"name": "b", "path": "/b"}})
    assert set(json.loads(file.read_text())) == {"operator", "trainer"}


def test_an_export_that_is_used_again_counts_as_the_newest(tmp_path: Path) -> None:
    export(tmp_path, "trainer-1", b"torch" * 100, age=20)
    export(tmp_path, "trainer-2", b"torch" * 100, age=10)
    assert layout.find(tmp_path, "trainer", "1") == tmp_path / "trainer-1"
    assert [path.name for path in layout.exports(tmp_path, "trainer")] == ["trainer-1", "trainer-2"]
    assert layout.find(tmp_path, "trainer", "3") is None
