"""Build what changed and write `build/images.json`: target -> name of the image and path of its export.

The base image may be chosen with BASE_IMAGE; TORCH_SLIM=0 keeps all of torch's CUDA build, which clusters of machines
without GPUs, such as devcluster, do not need.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tools.cache import cache_folder, locked
from tools.images import layout
from tools.images.base import base_image
from tools.images.engine import Build, Engine, choose_engine
from tools.images.inputs import TARGETS, content_hash
from tools.indexes import ca_bundle, index_settings_of_host
from tools.progress import ToolError, run_tool, say, step

ROOT = Path(__file__).resolve().parent.parent.parent
POINTERS = ROOT / "build" / "images.json"


def main() -> int:
    """Build the targets named on the command line, all by default."""
    targets = sys.argv[1:] or list(TARGETS)
    unknown = set(targets) - set(TARGETS)
    if unknown:
        raise ToolError(f"no image {', '.join(sorted(unknown))}: the Dockerfile has {', '.join(TARGETS)}")
    cache = cache_folder()
    with locked(cache / "locks" / "images"):
        build_images(targets, cache)
    return 0


def build_images(targets: Sequence[str], cache: Path) -> None:
    """Build and export those of `targets` whose inputs changed, and point to all of them."""
    folder = cache / "images"
    folder.mkdir(parents=True, exist_ok=True)
    arguments = {name: os.environ[name] for name in ("BASE_IMAGE",) if name in os.environ}
    arguments["TORCH_SLIM"] = os.environ.get("TORCH_SLIM", "1")
    tags = {target: content_hash(ROOT, target, arguments) for target in targets}
    wanted = {target: _export_of(folder, target, tag) for target, tag in tags.items()}
    outdated = [target for target, found in wanted.items() if found is None]
    if outdated:
        engine = choose_engine(cache)
        arguments.setdefault("BASE_IMAGE", base_image(engine, cache))
        for target in outdated:
            wanted[target] = build_image(engine, target, tags[target], arguments, folder)
        _forget_old(engine, targets, folder)
    images = {target: {"name": name_of(target, tags[target]), "path": str(path)} for target, path in wanted.items()}
    layout.write_pointers(POINTERS, images)
    for target, image in images.items():
        say(f"    {target}: {image['name']} at {image['path']}")


def build_image(engine: Engine, target: str, tag: str, arguments: dict[str, str], folder: Path) -> Path:
    """Build one target, export it, and return the path of the export."""
    name = name_of(target, tag)
    with step(f"image {name}"), tempfile.TemporaryDirectory() as secrets:
        build = Build(target, name, arguments, _secrets(Path(secrets)))
        engine.build(build, ROOT, ROOT / "Dockerfile")
        # Named, the stage below survives the pruning of layers.
        engine.build(
            Build("code", "localhost/regroup-code:latest", arguments, build.secrets), ROOT, ROOT / "Dockerfile"
        )
    path = folder / f"{target}-{tag}{engine.suffix}"
    with step(f"export to {path}"):
        layout.export(engine, name, path)
    return path


def name_of(target: str, tag: str) -> str:
    """Return the name of an image: its target and the hash of its inputs."""
    return f"localhost/regroup-{target}:{tag}"


def _export_of(folder: Path, target: str, tag: str) -> Path | None:
    return next((path for path in folder.glob(f"{target}-{tag}*") if not path.name.endswith(".unfinished")), None)


def _forget_old(engine: Engine, targets: Sequence[str], folder: Path) -> None:
    removed = {target: layout.prune(folder, target) for target in targets}
    names = [
        name_of(target, path.name[len(target) + 1 :].removesuffix(".tar"))
        for target in targets
        for path in removed[target]
    ]
    engine.prune(names)


def _secrets(folder: Path) -> dict[str, Path]:
    """Write what the build needs of this machine's settings, but must not keep: CA bundle, indexes, proxies."""
    environment = folder / "environment"
    environment.write_text("".join(f"export {name}='{value}'\n" for name, value in index_settings_of_host().items()))
    bundle = ca_bundle(os.environ)
    return {"environment": environment, **({"ca": Path(bundle)} if bundle else {})}


if __name__ == "__main__":
    run_tool(main)
