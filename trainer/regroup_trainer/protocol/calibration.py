"""What `regroup plan --calibrate` measures of a machine. The trainer measures, the client reads."""

from __future__ import annotations

from typing import Literal, TypeAlias

from pydantic import PositiveFloat, PositiveInt

from regroup_trainer.protocol.message import Message, Name

Precision: TypeAlias = Literal["bf16", "fp32"]


class ComputeRates(Message):
    """Operations per second of one device, while the others compute as well."""

    products: PositiveFloat
    """In matrix products of the model's shapes."""
    block: PositiveFloat
    """In the forward and backward pass of one block of the model, counted as a plan counts them."""


class LinkRates(Message):
    """Collectives over the local ranks."""

    all_reduce: PositiveFloat
    """Bytes per second that a rank sends in a large all-reduce."""
    all_gather: PositiveFloat
    """The same in an all-gather."""
    hop_seconds: PositiveFloat
    """Latency of one step of a ring, from a small all-reduce."""


class Calibration(Message):
    """The measured speeds of the machine on which the measuring ran."""

    device: Name
    """As the driver names it; `cpu` without a GPU."""
    ranks: PositiveInt
    """Devices that computed at once, each with one rank."""
    rates: dict[Precision, ComputeRates]
    links: LinkRates | None
    """None with one rank."""
