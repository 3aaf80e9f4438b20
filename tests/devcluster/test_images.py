"""The cache of unpacked images keeps what is new or in use."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from devcluster import registry
from devcluster.images import KEEP, ImageCache
from devcluster.registry import Record


@pytest.fixture
def cache(tmp_path: Path) -> ImageCache:
    return ImageCache(tmp_path / "layers-program", tmp_path / "images")


def make_entry(cache: ImageCache, name: str, digest: str, age: int) -> None:
    """An image of one layer (its diff id is `<digest>-layer`), last used `age` seconds ago."""
    entry = cache.folder / "index" / digest
    entry.mkdir(parents=True)
    (entry / "config").write_text(json.dumps({"rootfs": {"diff_ids": [f"sha256:{digest}-layer"]}}))
    (entry / "name").write_text(name)
    os.utime(entry / "name", (1_000_000 - age, 1_000_000 - age))
    (cache.folder / "layers" / f"{digest}-layer" / "fs").mkdir(parents=True)


def kept(cache: ImageCache, kind: str) -> set[str]:
    return {path.name for path in (cache.folder / kind).iterdir()}


def test_the_newest_versions_of_each_image_stay_with_their_layers(
    cache: ImageCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "load_all", list)
    for age in range(KEEP + 2):
        make_entry(cache, f"localhost/trainer:{age}", f"t{age}", age)
    make_entry(cache, "localhost/operator:1", "o1", age=1000)
    cache.prune()
    assert kept(cache, "index") == {"o1", *(f"t{age}" for age in range(KEEP))}
    assert kept(cache, "layers") == {f"{digest}-layer" for digest in kept(cache, "index")}


def test_what_a_running_cluster_uses_stays_however_old(
    cache: ImageCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = Record("c", 1, 0, state="/s", bin="/b", images=("sha256:t9",))
    monkeypatch.setattr(registry, "load_all", lambda: [record])
    for age in range(10):
        make_entry(cache, f"localhost/trainer:{age}", f"t{age}", age)
    cache.prune()
    assert "t9" in kept(cache, "index")
    assert "t8" not in kept(cache, "index")


def test_a_layer_whose_unpacking_was_interrupted_is_deleted(
    cache: ImageCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "load_all", list)
    (cache.folder / "layers" / "x.tmp" / "fs").mkdir(parents=True)
    cache.prune()
    assert kept(cache, "layers") == set()
