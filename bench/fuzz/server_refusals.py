"""Which refusals of the API server are findings: those that our own validation should have given,
with field and value, before anything of the job existed. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

SERVER_ALONE: Mapping[str, str] = {
    r"403 .*(exceeded|failed) quota: ": "what a namespace may use, and uses",
    r"403 .*serviceaccount \"[^\"]*\" not found": "the accounts of a namespace",
    r"403 .*no PriorityClass with name \S+ was found": "the priority classes of a cluster",
    r"403 .*priority admission controller computed": "what its priority classes stand for",
    r"403 .*RuntimeClass \"[^\"]*\" not found": "the runtime classes of a cluster",
    r"403 .*violates PodSecurity ": "the level of Pod Security of a namespace",
    r"403 .*(max|min)imum .* usage per (Container|Pod) is": "the limit ranges of a namespace",
    r"4\d\d .*(denied (the )?request|denied request): ": "webhooks and admission policies",
    r"403 .*because it is being terminated|404 namespaces ": "the namespaces of a cluster",
    r"422 .*(field is immutable|pod updates may not change|may not be changed)": "what was before",
    r"404 |409 ": "which objects there are, and in which version",
    r"429 |5\d\d ": "how busy the API server is",
}
"""Pattern of an answer -> what only the API server can know. Each begins with the status."""
KNOWN: Mapping[str, str] = {
    r"spec\.affinity\b": "terms and their selectors, which may not be empty",
    r"spec\.containers\[\]\.env\[\]\.valueFrom\b": "one source, and which fields a pod has",
    r"spec\.containers\[\]\.envFrom\b": "one source, with the name of an object",
    r"spec\.containers\[\]\.lifecycle\b": "one handler, and what each needs",
    r"spec\.containers\[\]\.(liveness|readiness|startup)Probe\b": "one handler; what each needs",
    r"spec\.containers\[\]\.resizePolicy\b": "its values, and those of a pod that never restarts",
    r"spec\.(containers\[\]\.)?resources\.claims\b": "names of spec.resourceClaims",
    r"spec\.containers\[\]\.restartPolicy\b": "its values; needed beside restartPolicyRules",
    r"spec\.containers\[\]\.restartPolicyRules\b": "values, and what each rule needs",
    r"spec\.(containers\[\]\.)?securityContext\b": "values of profiles; fields that exclude others",
    r"spec\.containers\[\]\.volumeDevices\b": "names of claims among spec.volumes",
    r"spec\.dnsConfig\b": "addresses, domains and names of options",
    r"spec\.hostAliases\b": "addresses and names of hosts",
    r"spec\.hostNetwork\b": "what hostProcess containers of Windows need",
    r"spec\.hostnameOverride\b": "the name of a host, which excludes hostNetwork",
    r"spec\.overhead\b": "names of resources",
    r"spec\.readinessGates\b": "names of conditions",
    r"spec\.resourceClaims\b": "names, one source each, none twice",
    r"spec\.tolerations\b": "operators that exclude values or effects",
    r"spec\.volumes\b": "what the kinds of volumes need",
    r".*error looking up service account .*invalid resource name": "spec.serviceAccount: its name",
}
"""Pattern of a kind -> what our validation does not check yet: a user learns of it only once the
coordinator exists. A fuzz has found each of these. With its mend in the operator, its line goes.
"""
_PATH = r"\b(?:spec|metadata|status)(?:\.[\w$-]+|\[[^\]]*\])*"
_PROBLEMS = (
    "Invalid value|Required value|Unsupported value|Duplicate value|Not found|Forbidden|Too long"
    "|Too many|Internal error"
)
_FIELD = re.compile(rf"({_PATH}): ({_PROBLEMS})\b")
"""As the API server writes a field and what is wrong with it."""
_NAMED = re.compile(r"\"(?:[^\"\\]|\\.)*\"|\([^)]*\)|\d+")
"""What differs between sentences of one kind."""
_ANSWER = re.compile(r"\b(?:POST|PUT|PATCH|DELETE) /\S+: (\d{3} .*)")
MOST_CHARACTERS = 200
"""Of a kind that is a sentence."""


def answers(text: str) -> list[str]:
    """The answers in the operator's words about requests that were refused, such as its log, each
    as status and sentence.
    """
    return _ANSWER.findall(text)


def kinds(answer: str) -> frozenset[str]:
    """What an answer of the API server (`422 Pod "a" is invalid: ...`) should have been refused for
    by our validation: each field without its indices, and what is wrong with it, or the sentence
    where it names none. Empty where only the API server can know it.
    """
    if any(re.match(pattern, answer, re.DOTALL) for pattern in SERVER_ALONE):
        return frozenset()
    fields = {f"{_without_indices(field)}: {what}" for field, what in _FIELD.findall(answer)}
    status, _, sentence = answer.partition(" ")
    return frozenset(fields or {f"{status} {_NAMED.sub('_', sentence)}"[:MOST_CHARACTERS]})


def is_known(kind: str) -> bool:
    """Whether it is on the list of what has been found before."""
    return any(re.match(pattern, kind, re.DOTALL) for pattern in KNOWN)


def unknown(found: Iterable[str]) -> list[str]:
    """The kinds that are not."""
    return [kind for kind in found if not is_known(kind)]


def _without_indices(field: str) -> str:
    containers = re.sub(r"\b(init|ephemeral)Containers\b", "containers", field)
    return re.sub(r"\[[^\]]*\]", "[]", containers)
