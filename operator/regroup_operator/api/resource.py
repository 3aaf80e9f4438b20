"""The resource TrainingJob: its names in the API, and the types of its fields."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, Field

from regroup_operator.api.names import OBJECT_NAME
from regroup_operator.api.timestamps import parse_time

GROUP = "regroup.dev"
VERSION = "v1alpha1"
KIND = "TrainingJob"
PLURAL = "trainingjobs"
API_VERSION = f"{GROUP}/{VERSION}"
MANAGED_BY = f"{GROUP}/operator"
"""The value of spec.managedBy that means this operator. Its absence means the same."""
NAME_PATTERN = "[a-z]([-a-z0-9]*[a-z0-9])?"
NAME_LIMIT = 50
Object = dict[str, Any]
"""A Kubernetes object, or a part of one, as JSON has it."""
Key = tuple[str, str]
"""Namespace and name of an object."""
Quantity = Annotated[str, Field(max_length=64)] | int
"""A Kubernetes quantity such as `500m`, `2Gi` or `1`."""
Label = Annotated[str, Field(max_length=317)]
ResourceName = Annotated[str, Field(min_length=1, max_length=253)]
ObjectName = Annotated[str, Field(min_length=1, max_length=253, pattern=rf"^{OBJECT_NAME}$")]
"""Name of an object that the operator reads: one segment of a path, whatever decodes it."""
Word = Annotated[str, Field(max_length=32)]
OptionalName = Annotated[str, Field(max_length=253)]
Sentence = Annotated[str, Field(max_length=1024)]


def _checked_time(text: str) -> str:
    parse_time(text)
    return text


Time = Annotated[
    str,
    Field(max_length=32, json_schema_extra={"format": "date-time"}),
    AfterValidator(_checked_time),
]
"""A point in time, in the format of Kubernetes. `parse_time` reads it without an error."""
