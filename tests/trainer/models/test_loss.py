"""The loss: a weighted sum, in chunks with less memory at its peak."""

from __future__ import annotations

import math
import weakref
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from regroup_trainer.models.loss import chunked_loss_sum, loss_sum
from tests.support.models import tokens

VOCABULARY, WIDTH = 2000, 16


class PeakMemory(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Bytes of the tensors that lived at the same time, at most."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = self.peak = 0
        self._known: set[int] = set()

    def __torch_dispatch__(
        self, function: Any, types: Any, arguments: Any = (), options: Any = None
    ) -> Any:
        made = function(*arguments, **(options or {}))
        for tensor in made if isinstance(made, tuple | list) else (made,):
            if isinstance(tensor, torch.Tensor):
                self._count(tensor.untyped_storage())
        return made

    def _count(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        if key not in self._known:
            self._known.add(key)
            self.now += storage.nbytes()
            self.peak = max(self.peak, self.now)
            weakref.finalize(storage, self._forget, key, storage.nbytes())

    def _forget(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.now -= size


def peak(chunks: int) -> int:
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(4, 64, WIDTH, generator=generator, requires_grad=True)
    head = torch.nn.Linear(WIDTH, VOCABULARY, bias=False)
    targets = tokens((4, 64), below=VOCABULARY)
    with PeakMemory() as memory:
        loss = chunked_loss_sum(head, hidden, targets, torch.ones(4), chunks)
        loss.backward()  # type: ignore[no-untyped-call]
    return int(memory.peak)


def test_chunks_need_less_memory_at_the_peak() -> None:
    assert peak(8) < peak(1) / 3


def test_samples_count_by_their_weight() -> None:
    logits = torch.zeros(3, 5, 7)
    weights = torch.tensor([1.0, 0.0, 1.0])
    assert loss_sum(logits, tokens((3, 5), below=7), weights).item() == pytest.approx(
        10 * math.log(7)
    )


def test_targets_may_have_any_shape() -> None:
    assert loss_sum(
        torch.zeros(3, 7), tokens((3,), below=7), torch.ones(3)
    ).item() == pytest.approx(3 * math.log(7))
