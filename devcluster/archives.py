"""Images as files. Reads docker-archives, OCI archives and OCI layouts in place, and writes small
OCI layouts.
"""

from __future__ import annotations

import hashlib
import io
import json
import platform
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from devcluster.errors import DevclusterError

OCI_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
OCI_CONFIG = "application/vnd.oci.image.config.v1+json"
OCI_INDEX = "application/vnd.oci.image.index.v1+json"
OCI_LAYER = "application/vnd.oci.image.layer.v1.tar"
INDEXES = (OCI_INDEX, "application/vnd.docker.distribution.manifest.list.v2+json")
NAME_ANNOTATIONS = ("io.containerd.image.name", "org.opencontainers.image.ref.name")


@dataclass(frozen=True)
class Span:
    """A range of bytes in a file."""

    path: Path
    offset: int
    size: int

    def read(self) -> bytes:
        with self.path.open("rb") as file:
            file.seek(self.offset)
            return file.read(self.size)


@dataclass(frozen=True)
class Image:
    """An image in an archive or a layout."""

    name: str
    """Full reference, such as localhost/regroup-trainer:dev. Empty when the source names none."""
    manifest: bytes
    config: bytes
    layers: tuple[Span, ...]

    @property
    def digest(self) -> str:
        """The manifest's digest. It identifies the image."""
        return sha256(self.manifest)

    @property
    def diff_ids(self) -> list[str]:
        """Digests of the uncompressed layers, from the lowest to the highest."""
        found: list[str] = json.loads(self.config)["rootfs"]["diff_ids"]
        return found


def sha256(content: bytes) -> str:
    """The digest of `content` in the notation of images."""
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def chain_ids(diff_ids: Sequence[str]) -> list[str]:
    """The chain ids of the layers. Each identifies a layer and all layers below it (OCI image
    specification, "ChainID").
    """
    chain: list[str] = []
    for diff_id in diff_ids:
        chain.append(sha256(f"{chain[-1]} {diff_id}".encode()) if chain else diff_id)
    return chain


def full_name(name: str) -> str:
    """The full reference of an image name. Registry and tag are added as container tools do."""
    first, _, rest = name.partition("/")
    if not rest:
        name = f"docker.io/library/{name}"
    elif "." not in first and ":" not in first and first != "localhost":
        name = f"docker.io/{name}"
    return name if ":" in name.rpartition("/")[2] or "@" in name else f"{name}:latest"


def read(source: Path, name: str | None = None) -> Image:
    """The image in a docker-archive, an OCI archive or an OCI layout folder. `name` overrides its
    own name.

    Raises DevclusterError for anything else.
    """
    files = _layout_files(source) if source.is_dir() else _archive_files(source)
    if "index.json" in files:
        image = _read_oci(files, source)
    elif "manifest.json" in files:
        image = _read_docker(files)
    else:
        raise DevclusterError(
            f"{source} holds no image: expected a docker-archive, an OCI archive or an OCI layout."
        )
    chosen = name or image.name
    if not chosen:
        raise DevclusterError(
            f"{source} does not name its image: give a name (--as localhost/x:tag)."
        )
    return Image(full_name(chosen), image.manifest, image.config, image.layers)


def _layout_files(folder: Path) -> dict[str, Span]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): Span(path, 0, path.stat().st_size) for path in files}


def _archive_files(archive: Path) -> dict[str, Span]:
    if not archive.exists():
        raise DevclusterError(f"There is no image {archive}: build it first (`make image`).")
    try:
        with tarfile.open(archive, "r:") as tar:
            members = {
                member.name.removeprefix("./"): member
                for member in tar
                if member.isfile() or member.issym()
            }
    except tarfile.ReadError as error:
        raise DevclusterError(
            f"{archive} is not an uncompressed tar archive ({error}): export it as one."
        ) from error
    files = {
        name: Span(archive, m.offset_data, m.size) for name, m in members.items() if m.isfile()
    }
    for link, member in members.items():  # docker-archives may contain a repeated layer as a link
        target = str(Path(link).parent / member.linkname) if member.issym() else ""
        normal = str(Path(*_normalised(target)))
        if member.issym() and normal in files:
            files[link] = files[normal]
    return files


def _normalised(path: str) -> list[str]:
    parts: list[str] = []
    for part in Path(path).parts:
        if part == "..":
            parts.pop()
        else:
            parts.append(part)
    return parts


def _read_oci(files: dict[str, Span], source: Path) -> Image:
    def blob(digest: str) -> Span:
        try:
            return files[f"blobs/{digest.replace(':', '/')}"]
        except KeyError as missing:
            raise DevclusterError(
                f"{source} lacks the blob {digest}: export it again."
            ) from missing

    descriptors = json.loads(files["index.json"].read())["manifests"]
    if len(descriptors) != 1:
        raise DevclusterError(f"{source} holds {len(descriptors)} images: export one at a time.")
    descriptor = descriptors[0]
    annotations = descriptor.get("annotations", {})
    name = next(
        (annotations[key] for key in NAME_ANNOTATIONS if "/" in annotations.get(key, "")), ""
    )
    if descriptor.get("mediaType") in INDEXES:
        descriptor = _for_this_machine(json.loads(blob(descriptor["digest"]).read()), source)
    manifest = blob(descriptor["digest"]).read()
    parsed = json.loads(manifest)
    layers = tuple(blob(layer["digest"]) for layer in parsed["layers"])
    return Image(name, manifest, blob(parsed["config"]["digest"]).read(), layers)


def _for_this_machine(index: dict[str, Any], source: Path) -> dict[str, Any]:
    for descriptor in index["manifests"]:
        platform = descriptor.get("platform", {})
        if platform.get("os") == "linux" and platform.get("architecture") == architecture():
            found: dict[str, Any] = descriptor
            return found
    raise DevclusterError(f"{source} holds no image for linux/{architecture()}.")


def _read_docker(files: dict[str, Span]) -> Image:
    entry = json.loads(files["manifest.json"].read())[0]
    config = files[entry["Config"]].read()
    layers = tuple(files[layer] for layer in entry["Layers"])
    described = [
        {"mediaType": OCI_LAYER, "digest": diff_id, "size": span.size}
        for diff_id, span in zip(json.loads(config)["rootfs"]["diff_ids"], layers, strict=True)
    ]
    name = (entry.get("RepoTags") or [""])[0]
    return Image(name, manifest_for(config, described), config, layers)


def manifest_for(config: bytes, layers: list[dict[str, object]]) -> bytes:
    """An OCI manifest."""
    return json.dumps(
        {
            "schemaVersion": 2,
            "mediaType": OCI_MANIFEST,
            "config": {"mediaType": OCI_CONFIG, "digest": sha256(config), "size": len(config)},
            "layers": layers,
        }
    ).encode()


def architecture() -> str:
    """The machine's architecture in the notation of images."""
    return {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())


def pack(
    name: str,
    files: dict[str, Path],
    links: dict[str, str],
    config: dict[str, object],
    folder: Path,
) -> Path:
    """Write an OCI layout with one layer of `files` (path in the image -> program) and `links`.
    Returns `folder`.
    """
    blob = _layer(files, links)
    described: dict[str, object] = {
        "mediaType": OCI_LAYER,
        "digest": sha256(blob),
        "size": len(blob),
    }
    image_config = json.dumps(
        {
            "architecture": architecture(),
            "os": "linux",
            "config": config,
            "rootfs": {"type": "layers", "diff_ids": [sha256(blob)]},
        }
    ).encode()
    manifest = manifest_for(image_config, [described])
    blobs = folder / "blobs" / "sha256"
    blobs.mkdir(parents=True, exist_ok=True)
    for content in (blob, image_config, manifest):
        (blobs / sha256(content).removeprefix("sha256:")).write_bytes(content)
    descriptor = {
        "mediaType": OCI_MANIFEST,
        "digest": sha256(manifest),
        "size": len(manifest),
        "annotations": {"org.opencontainers.image.ref.name": name},
    }
    (folder / "oci-layout").write_text(json.dumps({"imageLayoutVersion": "1.0.0"}))
    (folder / "index.json").write_text(
        json.dumps({"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": [descriptor]})
    )
    return folder


def _layer(files: dict[str, Path], links: dict[str, str]) -> bytes:
    """A tar archive of the programs and links, with the folders that every program expects."""
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as tar:
        for path in ("bin", "etc", "tmp"):
            directory = tarfile.TarInfo(path)
            directory.type, directory.mode = tarfile.DIRTYPE, 0o1777 if path == "tmp" else 0o755
            tar.addfile(directory)
        for target, source in sorted(files.items()):
            member = tarfile.TarInfo(target)
            member.mode, member.size = 0o755, source.stat().st_size
            with source.open("rb") as program:
                tar.addfile(member, program)
        for target, destination in sorted(links.items()):
            member = tarfile.TarInfo(target)
            member.type, member.linkname = tarfile.SYMTYPE, destination
            tar.addfile(member)
    return layer.getvalue()
