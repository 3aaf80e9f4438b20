"""Sums that are bit-identical for every world size.

Floating-point addition rounds, so a sum depends on the order of its terms. In a ring all-reduce,
that depends on the number of ranks. Here the global batch consists of virtual shards of one shape,
whose number does not depend on the world size. Their gradients are added in the order of one fixed
binary tree over the shards. A rank adds up the subtrees within its own shards. The ranks exchange
the roots of these; each rank finishes the tree for its part of the elements, and all gather the
results. The tree is the pairwise summation of N. Higham (1993), whose error grows only as
log2(shards).

Costs: each rank sends up to (K + 1) P elements (a ring all-reduce: 2 P) and needs memory for K P. P
is the number of elements of the gradient; K <= 2 log2(shards / ranks) + 1 is the largest number of
subtrees of a rank.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from regroup_trainer.data.batch import share

_BUCKET_ELEMENTS = 2**22
"""Elements that are exchanged at once; it bounds the memory of the exchange."""

T = TypeVar("T")


class Node(NamedTuple):
    """The sum of 2^level shards (or as many as there are), beginning with shard number x
    2^level.
    """

    level: int
    number: int


def roots(shards: range) -> list[Node]:
    """The largest whole subtrees that make up a contiguous range of shards, from left to right."""
    found: list[Node] = []
    for shard in shards:
        found.append(Node(0, shard))
        while merges(found):
            right = found.pop()
            found[-1] = Node(right.level + 1, right.number // 2)
    return found


def merges(nodes: list[Node]) -> bool:
    """Whether the last two are the halves of one node."""
    if len(nodes) < 2:
        return False
    left, right = nodes[-2:]
    return left.level == right.level and right.number % 2 == 1 and left.number == right.number - 1


def total(known: Mapping[Node, T], shards: int, add: Callable[[T, T], T]) -> T:
    """The sum over all shards in the order of the tree, from subtrees that cover them."""

    def value(node: Node) -> T:
        if node in known:
            return known[node]
        left, right = (
            Node(node.level - 1, 2 * node.number),
            Node(node.level - 1, 2 * node.number + 1),
        )
        if right.number << right.level >= shards:
            return value(left)
        return add(value(left), value(right))

    return value(Node((shards - 1).bit_length(), 0))


class OrderedSum:
    """Collects the gradients of this rank's virtual shards, and sums those of all ranks."""

    def __init__(self, model: nn.Module, shards: int, rank: int, world_size: int) -> None:
        self._parameters = [
            parameter for parameter in model.parameters() if parameter.requires_grad
        ]
        self._shards = shards
        self._roots = [roots(share(shards, number, world_size)) for number in range(world_size)]
        self._next = share(shards, rank, world_size).start
        self._rank = rank
        self._world_size = world_size
        self._nodes: list[Node] = []
        self._sums: list[list[Tensor]] = []
        """For each node, the sums of all parameters."""
        self._losses = [0.0] * shards

    @torch.no_grad()
    def take(self, loss: float) -> None:
        """Take the gradients of this rank's next shard out of the parameters, and its loss."""
        self._losses[self._next] = loss
        self._nodes.append(Node(0, self._next))
        self._sums.append([_taken(parameter) for parameter in self._parameters])
        self._next += 1
        while merges(self._nodes):
            right, values = self._nodes.pop(), self._sums.pop()
            torch._foreach_add_(self._sums[-1], values)
            self._nodes[-1] = Node(right.level + 1, right.number // 2)

    @torch.no_grad()
    def finish(self) -> float:
        """Set the parameters' gradients to the sums over all ranks; returns the sum of losses. All
        ranks call it.
        """
        for bucket in _buckets(self._parameters):
            elements = sum(self._parameters[number].numel() for number in bucket)
            reduced = self._reduce(
                [_flat(values[bucket.start : bucket.stop]) for values in self._sums], elements
            )
            sizes = [self._parameters[number].numel() for number in bucket]
            for number, part in zip(bucket, torch.split(reduced, sizes), strict=True):
                self._parameters[number].grad = part.view_as(self._parameters[number])
        losses = torch.tensor(self._losses, dtype=torch.float64, device=self._parameters[0].device)
        dist.all_reduce(
            losses
        )  # only one rank has each loss, the others add zeros: nothing is rounded
        return float(sum(losses.tolist()))

    def _reduce(self, own: list[Tensor], elements: int) -> Tensor:
        """Sum a bucket over all ranks. `own` are the flat values of this rank's roots."""
        width = -(-elements // self._world_size)  # elements of which each rank finishes the sum
        most = max(map(len, self._roots))
        like = self._parameters[0]
        sent = like.new_zeros(self._world_size, most, width)
        for slot, values in enumerate(own):
            padded = nn.functional.pad(values, (0, self._world_size * width - elements))
            sent[:, slot] = padded.view(self._world_size, width)
        received = torch.empty_like(sent)
        dist.all_to_all_single(received, sent)
        known = {
            node: received[rank, slot]
            for rank, nodes in enumerate(self._roots)
            for slot, node in enumerate(nodes)
        }
        part = total(known, self._shards, torch.add).contiguous()
        whole = like.new_empty(self._world_size * width)
        dist.all_gather_into_tensor(whole, part)
        return whole[:elements]


def _taken(parameter: nn.Parameter) -> Tensor:
    gradient = parameter.grad if parameter.grad is not None else torch.zeros_like(parameter)
    parameter.grad = None
    return gradient


def _flat(tensors: list[Tensor]) -> Tensor:
    return torch.cat([tensor.flatten() for tensor in tensors])


def _buckets(parameters: list[nn.Parameter]) -> Iterator[range]:
    """Ranges of parameters with about so many elements."""
    start, elements = 0, 0
    for number, parameter in enumerate(parameters):
        if elements and elements + parameter.numel() > _BUCKET_ELEMENTS:
            yield range(start, number)
            start, elements = number, 0
        elements += parameter.numel()
    yield range(start, len(parameters))
