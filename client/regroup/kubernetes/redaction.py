"""Takes secrets out of what leaves the cluster in a bundle. Pure.

Secrets themselves are never read. What people write in the wrong place is found by its name or by
its form, which cannot be complete: who gets a bundle should be trusted with the job's logs.
"""

from __future__ import annotations

import re
from typing import Any

from regroup_operator.api.resource import Object

REDACTED = "REDACTED"
_SECRET = r"(?:password|passwd|passphrase|token|secret|credential|authorization|api[-_]?key)"
_NAMED = re.compile(
    rf"((?:\b|_|-){_SECRET}[\"']?\s*[=:]\s*[\"']?(?:bearer\s+|basic\s+)?)[^\s\"',;]+", re.IGNORECASE
)
_BEARER = re.compile(r"\b(bearer\s+)[^\s\"',;]{8,}", re.IGNORECASE)
_IN_ADDRESS = re.compile(r"(\w+://)[^/\s:@]+:[^/\s@]+@")
_BY_FORM = re.compile(
    r"\b(?:hf_\w{20,}|gh[opsu]_\w{20,}|AKIA[0-9A-Z]{16}|eyJ[\w-]{10,}\.[\w-]+\.[\w-]*)"
)
_FLAG = re.compile(rf"^--?[\w-]*{_SECRET}[\w-]*$", re.IGNORECASE)
_PLAIN_VARIABLE = re.compile(
    r"^(REGROUP|NCCL|GLOO|OMP|CUDA|TORCH|PYTORCH|TORCHELASTIC|MASTER)_"
    r"(?!.*(TOKEN|KEY|SECRET|PASS))|^(RANK|WORLD_SIZE|LOCAL_RANK|LOCAL_WORLD_SIZE)$"
)
_ANNOTATION = "kubectl.kubernetes.io/last-applied-configuration"
"""It has the whole object once more, with the values of variables."""


def redacted_text(text: str) -> str:
    """A text without what looks like a secret."""
    for pattern, replacement in (
        (_NAMED, rf"\1{REDACTED}"),
        (_BEARER, rf"\1{REDACTED}"),
        (_IN_ADDRESS, rf"\1{REDACTED}@"),
        (_BY_FORM, REDACTED),
    ):
        text = pattern.sub(replacement, text)
    return text


def redacted(document: Object) -> Object:
    """An object without values of variables, but those of the training itself, and without what
    looks like a secret.
    """
    return {key: _redacted(part, key) for key, part in document.items()}


def _redacted(value: Any, key: str) -> Any:
    if isinstance(value, dict):
        if key == "annotations":
            value = {name: text for name, text in value.items() if name != _ANNOTATION}
        return {name: _redacted(part, name) for name, part in value.items()}
    if isinstance(value, list):
        if key == "env":
            return [_variable(variable) for variable in value]
        return _items(value)
    return redacted_text(value) if isinstance(value, str) else value


def _variable(variable: Any) -> Any:
    if not isinstance(variable, dict) or "value" not in variable:
        return variable
    plain = _PLAIN_VARIABLE.search(str(variable.get("name", "")))
    return {**variable, "value": redacted_text(str(variable["value"])) if plain else REDACTED}


def _items(values: list[Any]) -> list[Any]:
    """What follows a flag such as --token is a secret."""
    former: list[Any] = [None, *values]
    return [
        REDACTED if isinstance(flag, str) and _FLAG.match(flag) else _redacted(value, "")
        for flag, value in zip(former, values, strict=False)
    ]
