"""Which memory snapshots are whole, seen from outside: by the names of the files that agents keep.

An agent marks each shard that it holds, its own or a neighbour's, by a file in its private folder:
`held-<step>-<term>-<n>-<shards>-<shard>.json` (docs/design/0003-memory-snapshots.md). Pure.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping

from soak.evidence import WholeSnapshot
from soak.records import Stored

PATTERN = "regroup-*/snapshots/held-*.json"
"""Within a worker's scratch folder."""
HOLDING_NODES = 2
"""Nodes that hold each shard of a whole snapshot, if there are as many."""
_NAME = re.compile(r"held-(\d+)-(\d+)-(\d+)-(\d+)-(\d+)\.json", re.ASCII)


def whole(
    names: Mapping[str, Collection[str]], nodes: Mapping[str, str]
) -> tuple[WholeSnapshot, ...]:
    """The whole snapshots, by what files each member's pod has, and which node runs it."""
    holders: dict[tuple[Stored, int], dict[int, set[str]]] = defaultdict(lambda: defaultdict(set))
    for pod, found in names.items():
        for stored, shards, shard in filter(None, map(_parse, found)):
            holders[stored, shards][shard].add(pod)
    least = min(HOLDING_NODES, len(set(nodes.values())))
    return tuple(_whole(holders, nodes, least))


def _whole(
    holders: Mapping[tuple[Stored, int], Mapping[int, set[str]]],
    nodes: Mapping[str, str],
    least: int,
) -> Iterator[WholeSnapshot]:
    for (stored, shards), by_shard in holders.items():
        pods = [frozenset(by_shard.get(shard, ())) for shard in range(shards)]
        if all(len({nodes[pod] for pod in held}) >= least for held in pods):
            yield WholeSnapshot(stored, tuple(pods))


def _parse(name: str) -> tuple[Stored, int, int] | None:
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    step, term, n, shards, shard = map(int, match.groups())
    return Stored(step, (term, n)), shards, shard
