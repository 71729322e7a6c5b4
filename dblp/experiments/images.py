"""Images: CIFAR-10 and CIFAR-100 from their standard layouts, and digits that come in a package."""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional

from ..demo.data import ArrayUnpickler, Dataset, Part, cifar10_arrays
from ..demo.data import digits as small_digits
from ..errors import ConfigError
from .settings import Workload

__all__ = ["SOURCES", "describe_images", "images", "require_directory"]

CIFAR_100_FOLDER = "cifar-100-python"


@functools.lru_cache(maxsize=1)  # the next cell of a process most often has the same
def images(workload: Workload, data: str | None) -> Dataset:
    """The images of a workload, cut to what it uses.

    Args:
        data: directory with the standard layouts; not used for digits.

    Raises:
        ConfigError: they are missing or cannot be read, with where to get them.
    """
    train, test = _arrays(workload, data)
    return Dataset.of(
        workload.data,
        (train[0][: workload.samples], train[1][: workload.samples]),
        (test[0][: workload.test_samples], test[1][: workload.test_samples]),
        augment=workload.augment,
    )


def _arrays(workload: Workload, data: str | None) -> tuple[Part, Part]:
    if workload.data == "digits":
        return _large_digits()
    folder = require_directory(data, workload.data)
    return _cifar_100(folder) if workload.data == "cifar100" else cifar10_arrays(folder)


def describe_images(workload: Workload, data: str | None) -> str:
    """What the images are, in words: a copy with fewer colours is not what was published."""
    (pixels, labels), (_, test_labels) = _arrays(workload, data)
    levels = np.count_nonzero(np.bincount(pixels[:1000].ravel(), minlength=256))
    rounded = ""
    if workload.data != "digits" and levels < 256:
        rounded = f", colours rounded to {levels} levels in this copy"
    return f"{workload.data}, {len(labels):,} + {len(test_labels):,} images{rounded}"


SOURCES = {
    "cifar10": "unpack cifar-10-python.tar.gz from https://www.cs.toronto.edu/~kriz/cifar.html "
    "there, which makes cifar-10-batches-py",
    "cifar100": "unpack cifar-100-python.tar.gz from https://www.cs.toronto.edu/~kriz/cifar.html "
    "there, which makes cifar-100-python",
    "wikitext2": "put wiki.train.tokens and wiki.test.tokens of WikiText-2 (word level; Merity et "
    "al. 2016) into its folder wikitext-2",
}
"""Where data sets come from, by name."""


def require_directory(data: str | None, name: str) -> Path:
    """The directory that `--data` names; ConfigError with where to get the data set."""
    if data is None:
        raise ConfigError(
            f"this experiment needs {name}: pass --data DIR and {SOURCES[name]}; --scale smoke "
            "runs without"
        )
    folder = Path(data).expanduser()
    if not folder.is_dir():
        raise ConfigError(f"--data {data} is not a directory: make it, and {SOURCES[name]}")
    return folder


def _cifar_100(directory: Path) -> tuple[Part, Part]:
    nested = directory / CIFAR_100_FOLDER
    root = nested if nested.is_dir() else directory
    missing = [part for part in ("train", "test") if not (root / part).is_file()]
    if missing:
        raise ConfigError(f"{root} lacks {', '.join(missing)}: {SOURCES['cifar100']}")
    return _fine(root / "train"), _fine(root / "test")


def _fine(path: Path) -> Part:
    """One file: uint8 images (n, 3, 32, 32) and the fine labels, int64 (n,)."""
    try:
        with path.open("rb") as file:
            batch = ArrayUnpickler(file).load()
        pixels = np.asarray(batch[b"data"], dtype=np.uint8)
        labels = np.asarray(batch[b"fine_labels"], dtype=np.int64)
        if pixels.shape != (len(labels), 3 * 32 * 32) or len(labels) == 0:
            raise ValueError("the shape is wrong")
        if labels.min() < 0 or labels.max() > 99:
            raise ValueError("a label is out of range")
    except Exception as error:  # a broken pickle can raise nearly anything
        raise ConfigError(
            f"{path} is not a CIFAR-100 file ({error}): {SOURCES['cifar100']}"
        ) from error
    return pixels.reshape(-1, 3, 32, 32), labels


def _large_digits() -> tuple[Part, Part]:
    """The 8×8 digits as 32×32 pixels in three channels, for models that expect such images."""
    small = small_digits()

    def enlarged(pixels: torch.Tensor) -> np.ndarray:
        large = functional.interpolate(pixels.float(), scale_factor=4, mode="nearest")
        return large.to(torch.uint8).expand(-1, 3, -1, -1).contiguous().numpy()

    return (
        (enlarged(small.train_images), small.train_labels.numpy()),
        (enlarged(small.test_images), small.test_labels.numpy()),
    )
