"""Images. Each is unpacked once per machine and attached to every node without a copy.

The cache holds one folder per layer, named by its chain id. The snapshots of a node's containerd
link to these folders. A new cluster therefore gets a known image in milliseconds.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from devcluster import caches, registry
from devcluster.archives import OCI_MANIFEST, Image, chain_ids
from devcluster.processes import run
from devcluster.progress import Report, step
from tools.locks import locked

KEEP = 3
"""The number of versions of an image to keep, besides those of running clusters."""


@dataclass(frozen=True)
class ImageCache:
    """The unpacked images of this machine."""

    layers_program: Path
    folder: Path

    @classmethod
    def default(cls, bin_folder: Path) -> ImageCache:
        """The cache below `$REGROUP_CACHE`."""
        return cls(bin_folder / "layers", caches.devcluster() / "images")

    def add(self, image: Image, report: Report) -> None:
        """Unpack an image unless the cache holds it. An interrupted unpacking leaves nothing under
        the final name.
        """
        entry = self._entry(image.digest)
        if not self._has(image, entry):
            with locked(self.folder / "lock", "the image cache", report):
                if not self._has(image, entry):
                    with step(
                        report,
                        f"unpacked {image.name} ({sum(layer.size for layer in image.layers) >> 20} "
                        "MiB)",
                    ):
                        self._unpack(image)
                entry.mkdir(parents=True, exist_ok=True)
                (entry / "manifest").write_bytes(image.manifest)
                (entry / "config").write_bytes(image.config)
                (entry / "name").write_text(
                    "\n".join(dict.fromkeys([*self._names(entry), image.name]))
                )
                self.prune()
        (entry / "name").touch()  # `prune` keeps the newest

    def stored(self, digest: str) -> list[Image]:
        """The cached image with this manifest digest, once per name. Empty when the cache does not
        hold it.
        """
        entry = self._entry(digest)
        if not self._names(entry):
            return []
        manifest, config = (entry / "manifest").read_bytes(), (entry / "config").read_bytes()
        return [Image(name, manifest, config, layers=()) for name in self._names(entry)]

    def attach(self, image: Image, sockets: Iterable[Path]) -> None:
        """Register a cached image with the containerds behind `sockets`."""
        entry = self._entry(image.digest)
        manifest = json.loads(image.manifest)
        chain = chain_ids(image.diff_ids)
        for socket in sockets:
            request = {
                "socket": str(socket),
                "name": image.name,
                "manifest": str(entry / "manifest"),
                "manifestMediaType": manifest.get("mediaType", OCI_MANIFEST),
                "config": str(entry / "config"),
                "configDescriptor": manifest["config"],
                "layers": [
                    {"chainID": chain_id, "folder": str(self._layer(chain_id))}
                    for chain_id in chain
                ],
            }
            run([self.layers_program, "attach"], stdin=json.dumps(request))

    def prune(self) -> None:
        """Delete the images that are neither among the newest of their name nor used by a running
        cluster.
        """
        used = {digest for record in registry.load_all() for digest in record.images}
        entries = sorted(
            (self.folder / "index").glob("*/name"),
            key=lambda path: path.stat().st_mtime,
            reverse=True,
        )
        kept: dict[str, int] = {}
        for marker in entries:
            repository = marker.read_text().split()[0].rpartition(":")[0]
            kept[repository] = kept.get(repository, 0) + 1
            if kept[repository] > KEEP and f"sha256:{marker.parent.name}" not in used:
                shutil.rmtree(marker.parent)
        needed = {
            self._layer(chain_id).parent
            for config in (self.folder / "index").glob("*/config")
            for chain_id in chain_ids(json.loads(config.read_text())["rootfs"]["diff_ids"])
        }
        for layer in (self.folder / "layers").glob("*"):
            if layer not in needed:
                shutil.rmtree(layer)

    def _unpack(self, image: Image) -> None:
        chain = chain_ids(image.diff_ids)
        for number, (span, diff_id, chain_id) in enumerate(
            zip(image.layers, image.diff_ids, chain, strict=True)
        ):
            target = self._layer(chain_id)
            if target.is_dir():
                continue
            with _written_atomically(target.parent) as temporary:
                (temporary / "fs").mkdir(mode=0o755)
                request = {
                    "blob": str(span.path),
                    "offset": span.offset,
                    "size": span.size,
                    "diffID": diff_id,
                    "parents": [str(self._layer(parent)) for parent in reversed(chain[:number])],
                    "target": str(temporary / "fs"),
                }
                run([self.layers_program, "apply"], stdin=json.dumps(request))

    def _has(self, image: Image, entry: Path) -> bool:
        layers = (self._layer(chain_id) for chain_id in chain_ids(image.diff_ids))
        return image.name in self._names(entry) and all(layer.is_dir() for layer in layers)

    @staticmethod
    def _names(entry: Path) -> list[str]:
        """The full names under which an image was added, in this order."""
        return (entry / "name").read_text().split() if (entry / "name").exists() else []

    def _entry(self, digest: str) -> Path:
        return self.folder / "index" / digest.removeprefix("sha256:")

    def _layer(self, chain_id: str) -> Path:
        return self.folder / "layers" / chain_id.removeprefix("sha256:") / "fs"


@contextmanager
def _written_atomically(target: Path) -> Iterator[Path]:
    """A temporary folder that is renamed to `target` when the block succeeds. The caller holds the
    lock.
    """
    temporary = target.with_name(f"{target.name}.tmp")
    if temporary.exists():
        shutil.rmtree(temporary)
    temporary.mkdir(parents=True)
    yield temporary
    temporary.rename(target)
