"""The two data sets: scikit-learn's handwritten digits, and CIFAR-10 from a directory.

Both come as bytes with a fixed split that depends on no seed: every run, side and worker sees the
same training and test images.  A batch becomes float32 with zero mean and unit variance when it is
used, which keeps a worker's memory at a quarter.
"""

from __future__ import annotations

import dataclasses
import pickle
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch

from ..errors import ConfigError

DIGITS_TEST_IMAGES = 357
"""Of 1,797; leaves 1,440 = 15 batches of 96 to train on."""

CIFAR_TRAINING_FILES = tuple(f"data_batch_{i}" for i in range(1, 6))
CIFAR_TEST_FILE = "test_batch"


@dataclasses.dataclass(frozen=True)
class Dataset:
    """Images as uint8 (images, channels, height, width), labels as int64 (images,)."""

    name: str
    train_images: torch.Tensor
    train_labels: torch.Tensor
    test_images: torch.Tensor
    test_labels: torch.Tensor
    augment: bool
    """Whether training draws random crops and flips (not for digits: a mirrored 2 is no 2)."""
    mean: torch.Tensor
    """Of the training images by channel, float32 (channels, 1, 1)."""
    deviation: torch.Tensor
    """Standard deviation of the training images by channel, float32 (channels, 1, 1)."""

    @classmethod
    def of(
        cls,
        name: str,
        train: tuple[np.ndarray, np.ndarray],
        test: tuple[np.ndarray, np.ndarray],
        *,
        augment: bool,
    ) -> Dataset:
        """From (images, labels) of both parts."""
        # Sums over integers are exact; a float64 copy of all images would not fit everywhere.
        pixels = train[0].shape[0] * train[0].shape[2] * train[0].shape[3]
        levels = np.arange(256)
        counts = [
            np.bincount(train[0][:, c].ravel(), minlength=256) for c in range(train[0].shape[1])
        ]
        mean = np.array([(count * levels).sum() / pixels for count in counts])
        square = np.array([(count * levels**2).sum() / pixels for count in counts])
        deviation = np.sqrt(square - mean**2)
        train_images, train_labels, test_images, test_labels = map(
            torch.from_numpy, (*train, *test)
        )
        return cls(
            name=name,
            train_images=train_images,
            train_labels=train_labels,
            test_images=test_images,
            test_labels=test_labels,
            augment=augment,
            mean=torch.tensor(mean, dtype=torch.float32)[:, None, None],
            deviation=torch.tensor(deviation, dtype=torch.float32)[:, None, None],
        )

    def normalised(self, images: torch.Tensor) -> torch.Tensor:
        """`images` as the network wants them: float32 of the same shape."""
        return (images.float() - self.mean) / self.deviation


def load(data: str | None) -> Dataset:
    """The digits (None), or CIFAR-10 from directory `data`.  Raises ConfigError."""
    return digits() if data is None else cifar10(Path(data))


def digits() -> Dataset:
    """1,797 handwritten digits of 8×8 pixels (UCI, as packaged by scikit-learn)."""
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise ConfigError(
            "the digits come with scikit-learn, which is not installed:"
            " run pip install 'dblp[demo]', or pass --data with a CIFAR-10 directory"
        ) from error
    bunch = load_digits()
    order = np.random.default_rng(0).permutation(len(bunch.target))
    images = bunch.images[order].astype(np.uint8)[:, None]  # 0 … 16
    labels = bunch.target[order].astype(np.int64)
    split = len(labels) - DIGITS_TEST_IMAGES
    train, test = (images[:split], labels[:split]), (images[split:], labels[split:])
    return Dataset.of("digits", train, test, augment=False)


def cifar10(directory: Path) -> Dataset:
    """CIFAR-10 with crops and mirrors; see `cifar10_arrays`."""
    return Dataset.of("cifar10", *cifar10_arrays(directory), augment=True)


Part = tuple[np.ndarray, np.ndarray]
"""uint8 images (n, channels, height, width) and int64 labels (n,)."""


def cifar10_arrays(directory: Path) -> tuple[Part, Part]:
    """Training and test part of CIFAR-10 in its standard python layout: data_batch_1 …
    data_batch_5 and test_batch, in `directory` itself or in its `cifar-10-batches-py`."""
    if not directory.is_dir():
        raise ConfigError(
            f"--data {directory} is not a directory: pass the one that holds the CIFAR-10 files"
        )
    nested = directory / "cifar-10-batches-py"
    root = nested if nested.is_dir() else directory
    missing = [
        name for name in (*CIFAR_TRAINING_FILES, CIFAR_TEST_FILE) if not (root / name).is_file()
    ]
    if missing:
        raise ConfigError(
            f"{root} lacks {', '.join(missing)}: unpack cifar-10-python.tar.gz (the python version"
            " of CIFAR-10) there"
        )
    parts = [_cifar_batch(root / name) for name in CIFAR_TRAINING_FILES]
    train = (
        np.concatenate([images for images, _ in parts]),
        np.concatenate([labels for _, labels in parts]),
    )
    return train, _cifar_batch(root / CIFAR_TEST_FILE)


def _cifar_batch(path: Path) -> Part:
    """One file: uint8 images (n, 3, 32, 32) and int64 labels (n,)."""
    try:
        with path.open("rb") as file:
            batch = ArrayUnpickler(file).load()
        images = np.asarray(batch[b"data"], dtype=np.uint8)
        labels = np.asarray(batch[b"labels"], dtype=np.int64)
        if images.shape != (len(labels), 3 * 32 * 32) or len(labels) == 0:
            raise ValueError("the shape is wrong")
        if labels.min() < 0 or labels.max() > 9:
            raise ValueError("a label is out of range")
    except Exception as error:  # a broken pickle can raise nearly anything
        raise ConfigError(
            f"{path} is not a CIFAR-10 batch ({error}): download the python version again"
        ) from error
    return images.reshape(-1, 3, 32, 32), labels


class ArrayUnpickler(pickle.Unpickler):
    """Reads dictionaries of arrays and nothing else: a pickle can otherwise run any code."""

    _ALLOWED = frozenset(
        {
            ("numpy", "ndarray"),
            ("numpy", "dtype"),
            ("numpy.core.multiarray", "_reconstruct"),
            ("numpy._core.multiarray", "_reconstruct"),
            ("numpy.core.numeric", "_frombuffer"),
            ("numpy._core.numeric", "_frombuffer"),
            ("_codecs", "encode"),
        }
    )

    def __init__(self, file: BinaryIO) -> None:
        super().__init__(file, encoding="bytes")

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self._ALLOWED:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}")
        return super().find_class(module.replace("numpy.core", "numpy._core"), name)
