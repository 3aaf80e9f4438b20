"""Takes secrets out of what leaves the cluster in a bundle. Pure.

Secrets themselves are never read. What people write in the wrong place is found by its name or by
its form, which cannot be complete: who gets a bundle should be trusted with the job's logs.
"""

from __future__ import annotations

import re
from typing import Any

from regroup_operator.api.resource import Object

REDACTED = "REDACTED"
_SECRET = (
    r"(?:password|passwd|passphrase|secret|credential|authorization|token(?!s|i[sz])|"
    r"(?:api|access|private)[-_]?key)"
)
"""Tokens, in the plural, are those of a text, and a tokenizer cuts them."""
_SPACE, _QUOTE = r"[ \t]{0,8}", r"(?:\\?[\"'])?"
_VALUE = (
    rf"{_SPACE}{_QUOTE}(?:bearer +|basic +)?)"
    r"(?P<value>(?<=\")[^\"\n]+|(?<=')[^'\n]+|[^\s\"',;&]+)"
)
_START = r"(?<![\w/.-])"
"""Of a name, and not of a path. Names are bounded, so that a long line takes no longer for each of
its characters.
"""
_NAMED = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        rf"(?P<name>{_SECRET}[\w.-]{{0,64}}{_QUOTE}{_SPACE}=(?!=){_VALUE}",
        rf"(?P<name>{_START}[\w.-]{{0,64}}?{_SECRET}[\w-]{{0,64}}{_QUOTE}{_SPACE}:{_VALUE}",
        rf"(?P<name>{_START}--?[\w-]{{0,64}}?{_SECRET}[\w-]{{0,64}}[ \t](?!{_SPACE}-){_VALUE}",
    )
)
_PLAIN = re.compile(r"(?:true|false|none|null)\W*", re.IGNORECASE)
_NUMBER = re.compile(r"[-+]?\d[\d.,]*(?:e[-+]?\d+)?\W*", re.IGNORECASE)
_BEARER = re.compile(r"\b(bearer\s+)[^\s\"',;]{8,}", re.IGNORECASE)
_IN_ADDRESS = re.compile(r"\b(\w+://)[^/\s:@]+:[^/\s@]+@")
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
    for pattern in _NAMED:
        text = pattern.sub(_without_value, text)
    for pattern, replacement in (
        (_BEARER, rf"\1{REDACTED}"),
        (_IN_ADDRESS, rf"\1{REDACTED}@"),
        (_BY_FORM, REDACTED),
    ):
        text = pattern.sub(replacement, text)
    return text


def _without_value(found: re.Match[str]) -> str:
    return found[0] if _is_plain(found["name"], found["value"]) else f"{found['name']}{REDACTED}"


def _is_plain(name: str, value: str) -> bool:
    """Whether a value is no secret whatever its name says: a choice, or how many tokens there are,
    and which.
    """
    counts = "token" in name.lower() and _NUMBER.fullmatch(value)
    return bool(counts or _PLAIN.fullmatch(value))


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
        REDACTED if _follows_flag(flag, value) else _redacted(value, "")
        for flag, value in zip(former, values, strict=False)
    ]


def _follows_flag(flag: Any, value: Any) -> bool:
    is_flag = isinstance(flag, str) and _FLAG.match(flag)
    return bool(is_flag) and not _is_plain(flag, str(value))
