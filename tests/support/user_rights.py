"""Rights of users: those that a page of the documentation names, and how a test grants them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from tests.support.kube_api import ROOT, Json, Namespace
from tests.support.waiting import wait_until

_ROW = re.compile(r"^\| (`[^|]+`) \| ([^|]+?) \| ([^|]*?) *\|$", re.MULTILINE)
_ACTIONS = {"get", "list", "watch", "create", "patch", "delete"}
_RBAC = "rbac.authorization.k8s.io"


class Right(NamedTuple):
    """What a role allows."""

    verb: str
    resource: str

    @property
    def refusal(self) -> str:
        """What the API server says to whom lacks it."""
        return f'cannot {self.verb} resource "{self.resource}"'


def _rows() -> dict[str, tuple[str, str]]:
    """Verb of the command line -> what it needs, and what shows more, as the page says."""
    page = (ROOT / "docs/tasks/command-line.md").read_text()
    (section,) = re.findall(r"^## Rights$(.*?)^## ", page, re.M | re.S)
    return {
        verb: (needed, more)
        for verbs, needed, more in _ROW.findall(section)
        for verb in re.findall(r"`([\w -]+)`", verbs)
        if verb != "verb"
    }


VERBS = _rows()


def _client_rows() -> dict[str, tuple[frozenset[Right], frozenset[Right]]]:
    page = (ROOT / "docs/tasks/python-client.md").read_text()
    (section,) = re.findall(r"^## Rights$(.*?)^## ", page, re.M | re.S)
    found: dict[str, tuple[frozenset[Right], frozenset[Right]]] = {}
    last = ""
    for call, text in re.findall(r"^\| ([^|]*`[^|]*|the same[^|]*) \| ([^|]+) \|$", section, re.M):
        rights, beyond = frozenset(named_in(text)), frozenset[Right]()
        for other in re.findall(r"those of (`\w+\(\)`)", text):
            rights, beyond = rights | found[other][0], beyond | found[other][1]
        if call.startswith("the same"):
            needed, more = found[last]
            found[last] = needed, (more | rights | beyond) - needed
        else:
            last, found[call] = call, (rights, beyond)
    return found


def needed_by(verb: str) -> list[Right]:
    """What the page says that a verb cannot do without, unless it is asked to wait."""
    parts = VERBS[verb][0].split("; ")
    return named_in("; ".join(part for part in parts if not re.match(r"(with|to) ", part)))


def named_in(text: str) -> list[Right]:
    """The rights in a text such as `get`, `create pods` or "those of `debug`"."""
    found: list[Right] = []
    verbs: list[str] = []
    for word in re.findall(r"[\w/]+", " ".join(re.findall(r"`([^`]+)`", text))):
        if word in _ACTIONS:
            verbs.append(word)
        else:
            found += [Right(verb, word) for verb in verbs]
            verbs = []
    for other in re.findall(r"those of `([\w -]+)`", text):
        found += needed_by(other)
    return list(dict.fromkeys(found))


CLIENT_CALLS = _client_rows()
"""Call of the Python client, as its page names it -> the rights that it takes, and those that it
takes more where something is so.
"""


def grant(team: Namespace, user: str, rights: Iterable[Right]) -> None:
    """Give a user, who has no role yet, these rights in a namespace, and wait until he has them."""
    rights = list(rights)
    path = f"/apis/{_RBAC}/v1/namespaces/{team.name}"
    role = {"metadata": {"name": user}, "rules": [_rule(right) for right in rights]}
    assert team.api.request("POST", f"{path}/roles", role).status == 201
    binding = {
        "metadata": {"name": user},
        "roleRef": {"apiGroup": _RBAC, "kind": "Role", "name": user},
        "subjects": [{"kind": "User", "name": user, "apiGroup": _RBAC}],
    }
    made = team.api.request("POST", f"{path}/rolebindings", binding)
    assert made.status == 201, made.message
    wait_until("the rights", lambda: all(_may(team, user, one) for one in rights), seconds=60)


def _group(right: Right) -> str:
    return "regroup.dev" if right.resource.startswith("trainingjobs") else ""


def _rule(right: Right) -> Json:
    return {
        "apiGroups": [_group(right)],
        "resources": [right.resource],
        "verbs": [right.verb],
    }


def _may(team: Namespace, user: str, right: Right) -> bool:
    resource, _, part = right.resource.partition("/")
    asked = {
        "namespace": team.name,
        "verb": right.verb,
        "group": _group(right),
        "resource": resource,
        "subresource": part,
    }
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "LocalSubjectAccessReview",
        "metadata": {"namespace": team.name},
        "spec": {"user": user, "resourceAttributes": asked},
    }
    path = f"/apis/authorization.k8s.io/v1/namespaces/{team.name}/localsubjectaccessreviews"
    return bool(team.api.request("POST", path, review).body["status"]["allowed"])
