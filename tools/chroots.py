"""Small Debian or Ubuntu systems in folders, for other Pythons. debootstrap creates them and chroot
enters them.

Both need root on Debian or Ubuntu.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tools.debian import ensure_packages
from tools.progress import ToolError

_UNNEEDED = (
    "var/lib/apt/lists",
    "var/cache/apt",
    "var/log",
    "usr/share/doc",
    "usr/share/man",
    "usr/share/locale",
)
SHARED = Path("/shared")
_SEARCH_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True)
class Suite:
    """A release of a distribution, with the options of debootstrap."""

    name: str
    distribution: str = "Debian"
    components: str = "main"
    script: str = "sid"
    """debootstrap's script for this kind of release. Old versions lack the names of
    new releases.
    """
    keyring: str = "usr/share/keyrings/debian-archive-keyring.gpg"


BOOKWORM = Suite("bookworm")
TRIXIE = Suite("trixie")
FORKY = Suite("forky")
NOBLE = Suite(
    "noble",
    distribution="Ubuntu",
    components="main,universe",
    script="gutsy",
    keyring="usr/share/keyrings/ubuntu-archive-keyring.gpg",
)
SUITE_OF = {"3.11": BOOKWORM, "3.12": NOBLE, "3.13": TRIXIE, "3.14": FORKY, "3.15": FORKY}
"""The suite with a package of each Python. No release of Debian has 3.12."""


def make_system(suite: Suite, packages: Sequence[str], folder: Path, keys: Path) -> None:
    """Install `suite` with `packages` into `folder`. On an error, `folder` does not exist.

    `keys` is the root of a system with the suite's keyring. Raises ToolError.
    """
    ensure_packages(["debootstrap", "debian-archive-keyring"], f"to make a chroot of {suite.name}")
    unfinished = folder.with_name(f"{folder.name}.unfinished")
    if unfinished.exists():
        shutil.rmtree(unfinished)
    unfinished.parent.mkdir(parents=True, exist_ok=True)
    command = ["debootstrap", "--variant=minbase", "--force-check-gpg"]
    command += [f"--keyring={keys / suite.keyring}", f"--components={suite.components}"]
    command += [f"--include={','.join(packages)}", suite.name, str(unfinished)]
    command += [_mirror(suite), f"/usr/share/debootstrap/scripts/{suite.script}"]
    made = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    if made.returncode != 0:
        raise ToolError(f"`{shlex.join(command)}` failed: {made.stdout.strip()[-800:]}")
    for name in _UNNEEDED:
        shutil.rmtree(unfinished / name, ignore_errors=True)
        (unfinished / name).mkdir(parents=True)
    unfinished.rename(folder)


def _mirror(suite: Suite) -> str:
    """Return the archive of the suite's distribution that this machine's apt uses.

    An empty string stands for debootstrap's default.
    """
    wanted = (f"Origin: {suite.distribution}", f"Label: {suite.distribution}")
    query = ["apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages", *wanted]
    shown = subprocess.run(query, capture_output=True, text=True, check=False).stdout
    return next(iter(shown.split()), "")


@dataclass(frozen=True)
class Chroot:
    """A system in the folder `root`. It sees `shared`, a folder of this machine, as /shared, and
    `temporary` as /tmp.

    Tests without root's rights can read /shared, but not a folder below root's home.
    """

    root: Path
    shared: Path
    temporary: Path

    def run(self, command: Sequence[str], folder: Path, environment: Mapping[str, str]) -> int:
        """Run a command in `folder`, which is below `shared`, and return its exit code.

        The mounts end with the command's last process.
        """
        script = "\n".join(["set -e", *self._mounts(), 'exec chroot "$@"'])
        inside = ["env", f"--chdir={SHARED / folder.relative_to(self.shared)}", *command]
        return subprocess.run(
            ["unshare", "--mount", "sh", "-c", script, "sh", str(self.root), *inside],
            env={**environment, "PATH": _SEARCH_PATH},
            check=False,
        ).returncode

    def _mounts(self) -> list[str]:
        """Return the commands that mount the kernel's file systems, `shared`, `temporary`, and the
        machine's DNS settings and certificates.
        """
        same = ("dev", "proc", "sys", "etc/hosts", "etc/resolv.conf", "etc/ssl/certs")
        places = {Path("/") / name: self.root / name for name in same}
        places[self.shared] = self.root / SHARED.relative_to("/")
        places[self.temporary] = self.root / "tmp"
        itself = _mount(self.root, self.root)  # `ip netns` changes how / is mounted
        return [itself, *(_mount(path, place) for path, place in places.items() if path.exists())]


def _mount(source: Path, target: Path) -> str:
    if source.is_dir():
        target.mkdir(parents=True, exist_ok=True)
    else:
        target.touch()
    return f"mount --rbind {shlex.quote(str(source))} {shlex.quote(str(target))}"


def require_root() -> None:
    """Raise ToolError unless the process is root, which may mount and chroot."""
    if os.geteuid() != 0:
        raise ToolError("not root: cannot create a chroot; run this with `sudo -E`")
