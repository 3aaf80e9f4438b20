"""Checks a pod, or a template of one, by Kubernetes' own types, before the API server sees it.

`pod_schema.json` has the types and the required fields of Kubernetes' OpenAPI document, which does
not say what a name or an amount looks like: that is the table `FORMATS` here. Fields that the table
does not know are let through, since a newer Kubernetes may know them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

from regroup_trainer.protocol.message import listed, quote, shorten

_TYPES: Mapping[str, Any] = json.loads(
    Path(__file__).with_name("pod_schema.json").read_text(encoding="utf-8")
)["types"]
_INTEGERS = {"int32": 2**31, "int64": 2**63}
_QUOTED = ": write it in quotation marks"


def find_mismatch(value: Any, kind: str, path: str, *, whole: bool = True) -> str:
    """The first thing in `value` that Kubernetes would refuse in an object of type `kind`: field,
    value and what is possible. Empty when there is none.

    `whole`: whether required fields must be there. A template that is merged may lack them.
    """
    return next(_mismatches(value, kind, path, whole), "")


def _mismatches(value: Any, kind: str, path: str, whole: bool) -> Iterator[str]:
    if kind.startswith("["):
        yield from _of_list(value, kind[1:-1], path, whole)
    elif kind.startswith("{"):
        yield from _of_map(value, kind[1:-1], path, whole)
    elif kind in _TYPES:
        yield from _of_object(value, kind, path, whole)
    elif problem := _SCALARS.get(kind, lambda _: "")(value):
        yield f"{path}: {problem}"


def _of_list(value: Any, kind: str, path: str, whole: bool) -> Iterator[str]:
    if not isinstance(value, list):
        yield f"{path}: must be a list, got {quote(value)}"
        return
    for place, entry in enumerate(value):
        yield from _mismatches(entry, kind, f"{path}[{_label(entry, place)}]", whole)


def _of_map(value: Any, kind: str, path: str, whole: bool) -> Iterator[str]:
    if not isinstance(value, Mapping):
        yield f"{path}: must be an object, got {quote(value)}"
        return
    for key, entry in value.items():
        if not isinstance(key, str):
            yield f"{path}: the key {quote(key)} must be a string{_QUOTED}"
        elif entry is not None:
            yield from _mismatches(entry, kind, f"{path}[{shorten(key)}]", whole)


def _of_object(value: Any, kind: str, path: str, whole: bool) -> Iterator[str]:
    if not isinstance(value, Mapping):
        yield f"{path}: must be an object, got {quote(value)}"
        return
    for field in _TYPES[kind]["required"] if whole else ():
        if value.get(field) is None:
            yield f"{path}.{field}: is missing: a {kind} of Kubernetes needs it"
    for field, inner in _TYPES[kind]["fields"].items():
        given = value.get(field)
        if given is None:
            continue
        where = f"{path}.{field}"
        yield from _mismatches(given, inner, where, whole)
        if problem := FORMATS.get((kind, field), lambda _: "")(given):
            yield f"{where}: {problem}"


def _label(entry: Any, place: int) -> str:
    """How a message names an entry of a list: by its name, else by its place."""
    name = entry.get("name") if isinstance(entry, Mapping) else None
    return shorten(name) if isinstance(name, str) and name else str(place)


# --- scalars --------------------------------------------------------------------------------------


def _string(value: Any) -> str:
    if isinstance(value, str):
        return ""
    advice = _QUOTED if isinstance(value, bool | int | float) else ""
    return f"must be a string, got {quote(value)}{advice}"


def _boolean(value: Any) -> str:
    return "" if isinstance(value, bool) else f"must be true or false, got {quote(value)}"


def _integer(kind: str) -> Callable[[Any], str]:
    most = _INTEGERS[kind]

    def check(value: Any) -> str:
        if isinstance(value, bool) or not isinstance(value, int):
            return f"must be a whole number, got {quote(value)}"
        in_range = -most <= value < most
        return "" if in_range else f"must lie between {-most} and {most - 1}, got {quote(value)}"

    return check


_QUANTITY = re.compile(
    r"(?!$)(?P<number>[+-]?\d*(\.\d*)?)(?P<suffix>[KMGTPE]i|[numkMGTPE]|[eE][+-]?\d{1,3})?",
    re.ASCII,
)
"""Kubernetes takes `Gi` for `0Gi`."""
_SCALES = {
    **{letter: Fraction(1, 1000**power) for power, letter in enumerate("mun", 1)},
    **{letter: Fraction(1000**power) for power, letter in enumerate("kMGTPE", 1)},
    **{f"{letter}i": Fraction(1024**power) for power, letter in enumerate("KMGTPE", 1)},
}
_QUANTITY_LIMIT = 64
"""Characters of an amount, as in spec.resources."""
_LESS_THAN_ZERO = re.compile(r"-.*[1-9].*", re.ASCII)


def _quantity(value: Any) -> str:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    text = quote(value) if is_number else value
    if not isinstance(text, str) or len(text) > _QUANTITY_LIMIT or not _QUANTITY.fullmatch(text):
        return f"must be an amount such as 2, 500m or 16Gi, got {quote(value)}"
    is_negative = _LESS_THAN_ZERO.fullmatch(text)
    return f"must not be negative, got {quote(value)}" if is_negative else ""


def _int_or_string(value: Any) -> str:
    return "" if isinstance(value, str) else _integer("int32")(value)


_SCALARS: Mapping[str, Callable[[Any], str]] = {
    "string": _string,
    "boolean": _boolean,
    "quantity": _quantity,
    "int-or-string": _int_or_string,
    **{kind: _integer(kind) for kind in _INTEGERS},
}

# --- formats --------------------------------------------------------------------------------------

_NAME_RULE = "must have lower-case letters, digits and '-', and begin and end with no '-'"
_SUBDOMAIN = r"(?=[^/]{1,253}(/|$))[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*"
_KEY = r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
_QUALIFIED = re.compile(f"({_SUBDOMAIN}/)?{_KEY}", re.ASCII)
_LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?", re.ASCII)


def _matches(pattern: str, rule: str) -> Callable[[Any], str]:
    compiled = re.compile(pattern, re.ASCII)

    def check(value: Any) -> str:
        fits = not isinstance(value, str) or compiled.fullmatch(value)
        return "" if fits else f"{rule}, got {quote(value)}"

    return check


def _one_of(*values: str) -> Callable[[Any], str]:
    """An empty text is as none."""

    def check(value: Any) -> str:
        return "" if value in ("", *values) else f"must be {listed(values)}, got {quote(value)}"

    return check


def _between(fewest: int, most: int) -> Callable[[Any], str]:
    def check(value: Any) -> str:
        fits = not isinstance(value, int) or fewest <= value <= most
        return "" if fits else f"must lie between {fewest} and {most}, got {quote(value)}"

    return check


def _keys(value: Any) -> str:
    """Keys of labels, and names of resources."""
    wrong = (key for key in _names_in(value) if not _QUALIFIED.fullmatch(key))
    return next((f"{quote(key)} is no key: write it as in example.com/name" for key in wrong), "")


def _names_in(value: Any) -> list[str]:
    return [key for key in (value if isinstance(value, Mapping) else ()) if isinstance(key, str)]


def _annotations(value: Any) -> str:
    """Upper case is possible in all parts of their keys."""
    return _keys(dict.fromkeys(key.lower() for key in _names_in(value)))


_STANDARD = re.compile(r"cpu|memory|ephemeral-storage|hugepages-.*|.*/.*", re.DOTALL)


def _amounts(value: Any) -> str:
    """Amounts of what a container needs."""
    if problem := _keys(value):
        return problem
    if wrong := next((key for key in _names_in(value) if not _STANDARD.fullmatch(key)), None):
        return f"{quote(wrong)} is no resource: write cpu, memory, or one as in nvidia.com/gpu"
    parts = ((key, value[key]) for key in _names_in(value) if "/" in key)
    broken = next(((key, amount) for key, amount in parts if _is_broken(amount)), None)
    return f"{quote(broken[0])} must be a whole number, got {quote(broken[1])}" if broken else ""


def _is_broken(amount: Any) -> bool:
    """Whether an amount is not whole. Kubernetes counts devices."""
    number = amount_of(amount)
    return number is not None and number.denominator > 1  # another check refuses what is no amount


def amount_of(value: Any) -> Fraction | None:
    """The number that an amount such as 2, `500m` or `16Gi` stands for; None where it is none."""
    parts = _QUANTITY.fullmatch(str(value))
    if parts is None or isinstance(value, bool) or _quantity(value):
        return None
    number, suffix = parts["number"], parts["suffix"] or ""
    scale = _SCALES.get(suffix) or Fraction(f"1{suffix}" if suffix[:1] in ("e", "E") else 1)
    digits = number if any(map(str.isdigit, number)) else "0"
    return Fraction(digits) * scale


def _labels(value: Any) -> str:
    if problem := _keys(value):
        return problem
    wrong = (
        (key, text)
        for key, text in (value.items() if isinstance(value, Mapping) else ())
        if isinstance(text, str) and not _LABEL_VALUE.fullmatch(text)
    )
    rule = "must have at most 63 letters, digits, '-', '_' and '.', got"
    return next((f"the value of {shorten(key)} {rule} {quote(text)}" for key, text in wrong), "")


def _qualified(value: Any) -> str:
    fits = not isinstance(value, str) or _QUALIFIED.fullmatch(value)
    return "" if fits else f"must be written as in example.com/name, got {quote(value)}"


_DNS_LABEL = _matches(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", _NAME_RULE)
_DNS_NAME = _matches(_SUBDOMAIN, _NAME_RULE)
_NOT_NEGATIVE = _between(0, 2**31 - 1)
FORMATS: Mapping[tuple[str, str], Callable[[Any], str]] = {
    ("ObjectMeta", "labels"): _labels,
    ("ObjectMeta", "annotations"): _annotations,
    ("LabelSelector", "matchLabels"): _labels,
    ("PodSpec", "nodeSelector"): _labels,
    ("ResourceRequirements", "limits"): _amounts,
    ("ResourceRequirements", "requests"): _amounts,
    ("PodSpec", "priorityClassName"): _DNS_NAME,
    ("PodSpec", "serviceAccountName"): _DNS_NAME,
    ("PodSpec", "runtimeClassName"): _DNS_NAME,
    ("PodSpec", "dnsPolicy"): _one_of("ClusterFirst", "ClusterFirstWithHostNet", "Default", "None"),
    ("PodSpec", "activeDeadlineSeconds"): _between(1, 2**31 - 1),
    ("Container", "name"): _DNS_LABEL,
    ("Container", "image"): _matches(r"\S(.*\S)?", "must neither begin nor end with a blank"),
    ("Container", "imagePullPolicy"): _one_of("Always", "IfNotPresent", "Never"),
    ("Container", "terminationMessagePolicy"): _one_of("File", "FallbackToLogsOnError"),
    ("ContainerPort", "containerPort"): _between(1, 65535),
    ("ContainerPort", "hostPort"): _between(0, 65535),
    ("ContainerPort", "name"): _matches(
        r"((?=.*[a-z])(?!.*--)[a-z0-9]([-a-z0-9]{0,13}[a-z0-9])?)?",
        "must have at most 15 lower-case letters, digits and '-'",
    ),
    ("ContainerPort", "protocol"): _one_of("TCP", "UDP", "SCTP"),
    ("EnvFromSource", "prefix"): _matches(r"[ -<>-~]*", "must be printable ASCII without '='"),
    ("EnvVar", "name"): _matches(r"[ -<>-~]+", "must be printable ASCII without '='"),
    ("Volume", "name"): _DNS_LABEL,
    ("VolumeMount", "mountPath"): _matches(r"(?s:.+)", "must be a path"),
    ("VolumeMount", "subPath"): _matches(
        r"(?s)(?!/)(?!(.*/)?\.\.(/|$)).*", "must be a path below the volume, without '..'"
    ),
    ("GRPCAction", "port"): _between(1, 65535),
    ("PodOS", "name"): _matches(r"linux|windows", "must be linux or windows"),
    ("PodSchedulingGate", "name"): _qualified,
    ("Toleration", "operator"): _one_of("Exists", "Equal", "Lt", "Gt"),
    ("Toleration", "effect"): _one_of("NoSchedule", "PreferNoSchedule", "NoExecute"),
    ("TopologySpreadConstraint", "maxSkew"): _between(1, 2**31 - 1),
    ("TopologySpreadConstraint", "whenUnsatisfiable"): _one_of("DoNotSchedule", "ScheduleAnyway"),
    **{
        ("Probe", field): _NOT_NEGATIVE
        for field in (
            "initialDelaySeconds",
            "periodSeconds",
            "timeoutSeconds",
            "successThreshold",
            "failureThreshold",
        )
    },
    **{
        (kind, field): _NOT_NEGATIVE
        for kind in ("SecurityContext", "PodSecurityContext")
        for field in ("runAsUser", "runAsGroup")
    },
    ("PodSecurityContext", "fsGroup"): _NOT_NEGATIVE,
}
"""Type and field -> what its value must look like, where the types alone do not say so."""
