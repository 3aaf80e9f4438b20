"""Images of ten shapes, 8 x 8 pixels, drawn with noise: a data set that needs no download."""

import torch
from torch import Tensor
from torch.utils.data import Dataset


class Digits(Dataset[tuple[Tensor, int]]):
    """2048 samples to train on, 512 others to test with."""

    def __init__(self, train: bool) -> None:
        generator = torch.Generator().manual_seed(7)
        shapes = torch.rand(10, 8, 8, generator=generator)
        labels = torch.randint(10, (2560,), generator=generator)
        images = shapes[labels] + 0.6 * torch.randn(2560, 8, 8, generator=generator)
        chosen = slice(0, 2048) if train else slice(2048, None)
        self.images, self.labels = images[chosen], labels[chosen].tolist()

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.images[index], self.labels[index]
