"""The image that a tag stood for when a job started, so that all its later pods run the same. Pure.

A kubelet reports `name@sha256:...` for an image of a registry. It reports no name, or another one,
for an image that was loaded into its node: nobody can pull that by its digest.
"""

from __future__ import annotations

import re

from regroup_operator.api.status import IMAGE_LIMIT

_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_HUB = "docker.io"


def with_digest(image: str, image_id: str) -> str:
    """`image` by the digest that a kubelet reports for it; unchanged where it has one, or where
    the kubelet does not name the same repository.
    """
    name, _, digest = image_id.rpartition("://")[2].partition("@")
    if "@" in image or not _DIGEST.fullmatch(digest) or not _same_repository(image, name):
        return image
    exact = f"{_repository(image)}@{digest}"
    return exact if len(exact) <= IMAGE_LIMIT else image


def as_recorded(image: str, recorded: str) -> str:
    """What to run for an image of a pod template: the recorded one, if that is it by its digest."""
    pinned = "@" in recorded and "@" not in image and _same_repository(image, recorded)
    return recorded if pinned else image


def _same_repository(one: str, other: str) -> bool:
    return _full_name(_repository(one)) == _full_name(_repository(other))


def _repository(image: str) -> str:
    """An image without its tag and digest. The port of a registry stays."""
    name = image.partition("@")[0]
    folder, slash, last = name.rpartition("/")
    return folder + slash + last.partition(":")[0]


def _full_name(repository: str) -> str:
    """A repository with its registry, as containerd and Docker complete it."""
    host, slash, rest = repository.partition("/")
    if not slash or not (set(".:") & set(host) or host == "localhost"):
        host, rest = _HUB, repository
    if host in (_HUB, f"index.{_HUB}"):
        host, rest = _HUB, rest if "/" in rest else f"library/{rest}"
    return f"{host}/{rest}"
