"""Loss and gradient of a tiny linear model, and why one big batch equals accumulated small ones.

python gradients.py
"""

from __future__ import annotations

import torch
from torch import Tensor

LEARNING_RATE = 0.1


def sum_of_losses(weight: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
    """Half the squared error of the model y = x w, summed over the samples."""
    return 0.5 * ((inputs @ weight - targets) ** 2).sum()


def by_hand(weight: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
    """Its gradient, x^T (x w - y): what autograd must find too."""
    return inputs.T @ (inputs @ weight - targets)


def gradient(weight: Tensor, inputs: Tensor, targets: Tensor, parts: list[int]) -> Tensor:
    """Mean gradient over the batch, cut into `parts` samples at a time; backward() adds to what is
    there.
    """
    weight = weight.clone().requires_grad_()
    for part_inputs, part_targets in zip(inputs.split(parts), targets.split(parts), strict=True):
        # Divide by the whole batch, not by the part: then the sum over parts is the mean over the
        # batch.
        (sum_of_losses(weight, part_inputs, part_targets) / len(inputs)).backward()
    assert weight.grad is not None
    return weight.grad


def mean_of_means(weight: Tensor, inputs: Tensor, targets: Tensor, parts: list[int]) -> Tensor:
    """What comes out when every part is averaged by itself, and the averages are averaged."""
    pairs = zip(inputs.split(parts), targets.split(parts), strict=True)
    return torch.stack([by_hand(weight, x, y) / len(x) for x, y in pairs]).mean(0)


def descend(inputs: Tensor, targets: Tensor, parts: list[int], steps: int) -> Tensor:
    """Weights after some steps of gradient descent from zero."""
    weight = torch.zeros(inputs.shape[1])
    for _ in range(steps):
        weight = weight - LEARNING_RATE * gradient(weight, inputs, targets, parts)
    return weight


def main() -> None:
    """Print each claim with its figures."""
    torch.manual_seed(0)
    truth = torch.tensor([2.0, -1.0, 0.5])
    inputs = torch.randn(64, 3)
    targets = inputs @ truth
    zero = torch.zeros(3)

    auto, hand = gradient(zero, inputs, targets, [64]), by_hand(zero, inputs, targets) / 64
    print(f"gradient at w = 0     autograd {auto.tolist()}")
    print(f"                      by hand  {hand.tolist()}")

    even, uneven = [16] * 4, [40, 20, 3, 1]
    for name, parts in (("4 x 16", even), ("40 + 20 + 3 + 1", uneven)):
        error = float((gradient(zero, inputs, targets, parts) - auto).abs().max())
        naive = float((mean_of_means(zero, inputs, targets, parts) - auto).abs().max())
        print(
            f"accumulated {name:16} differs from one batch of 64 by {error:.1e}; a mean of means "
            f"by {naive:.1e}"
        )

    for name, parts in (("one batch of 64", [64]), ("accumulated", uneven)):
        weight = descend(inputs, targets, parts, steps=100)
        print(
            f"100 steps, {name:16} w = {[round(value, 5) for value in weight.tolist()]} (truth "
            f"{truth.tolist()})"
        )


if __name__ == "__main__":
    main()
