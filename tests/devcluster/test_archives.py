"""Images in archives and layouts."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path

import pytest

from devcluster.archives import chain_ids, full_name, pack, read, sha256
from devcluster.errors import DevclusterError


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "program"
    path.write_bytes(b"#!/bin/true\n")
    return path


@pytest.fixture
def layout(tmp_path: Path, program: Path) -> Path:
    return pack(
        "localhost/tool:1",
        {"tool": program},
        {"bin/sh": "/tool"},
        {"Cmd": ["/tool"]},
        tmp_path / "layout",
    )


def archive(files: dict[str, bytes], target: Path) -> Path:
    with tarfile.open(target, "w") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return target


def test_a_layout_and_its_archive_are_the_same_image(layout: Path, tmp_path: Path) -> None:
    files = {str(p.relative_to(layout)): p.read_bytes() for p in layout.rglob("*") if p.is_file()}
    image = read(layout)
    again = read(archive(files, tmp_path / "oci.tar"))
    assert image.name == "localhost/tool:1"
    assert (again.name, again.digest, again.diff_ids) == (image.name, image.digest, image.diff_ids)
    assert again.layers[0].read() == image.layers[0].read()


def test_a_docker_archive_is_read_with_its_tag(layout: Path, tmp_path: Path) -> None:
    image = read(layout)
    manifest = [{"Config": "c.json", "RepoTags": ["localhost/old:2"], "Layers": ["l.tar"]}]
    files = {
        "manifest.json": json.dumps(manifest).encode(),
        "c.json": image.config,
        "l.tar": image.layers[0].read(),
    }
    docker = read(archive(files, tmp_path / "docker.tar"))
    assert docker.name == "localhost/old:2"
    assert docker.diff_ids == image.diff_ids
    assert sha256(docker.layers[0].read()) == image.diff_ids[0]


def test_a_given_name_wins(layout: Path) -> None:
    assert read(layout, "localhost/other:3").name == "localhost/other:3"


def test_an_archive_without_an_image_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DevclusterError, match="holds no image"):
        read(archive({"readme": b""}, tmp_path / "x.tar"))


def test_a_compressed_archive_is_refused_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "x.tar").write_bytes(b"\x1f\x8b" + bytes(1000))
    with pytest.raises(DevclusterError, match="not an uncompressed tar"):
        read(tmp_path / "x.tar")


def test_a_layout_that_lacks_a_blob_says_which(layout: Path) -> None:
    config = next(p for p in (layout / "blobs/sha256").iterdir() if b'"rootfs"' in p.read_bytes())
    config.unlink()
    with pytest.raises(DevclusterError, match=f"lacks the blob sha256:{config.name}"):
        read(layout)


@pytest.mark.parametrize(
    ("name", "full"),
    [
        ("busybox", "docker.io/library/busybox:latest"),
        ("team/tool:2", "docker.io/team/tool:2"),
        ("localhost/tool", "localhost/tool:latest"),
        ("registry.test:5000/tool", "registry.test:5000/tool:latest"),
    ],
)
def test_names_are_completed_as_container_tools_do(name: str, full: str) -> None:
    assert full_name(name) == full


def test_a_chain_id_names_a_layer_and_all_below_it() -> None:
    first, second = chain_ids(["sha256:a", "sha256:b"])
    assert first == "sha256:a"
    assert second == sha256(b"sha256:a sha256:b")
