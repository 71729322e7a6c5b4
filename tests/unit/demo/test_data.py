from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
np = pytest.importorskip("numpy")

from dblp.demo import data  # noqa: E402 (needs torch)
from dblp.errors import ConfigError  # noqa: E402

IMAGES_PER_FILE = 4


def write_cifar(directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(1)
    for name in (*data.CIFAR_TRAINING_FILES, data.CIFAR_TEST_FILE):
        batch = {
            b"data": random.integers(0, 256, (IMAGES_PER_FILE, 3072), dtype=np.uint8),
            b"labels": [0, 9, 3, 5],
        }
        (directory / name).write_bytes(pickle.dumps(batch, protocol=2))


def test_digits_have_a_fixed_split() -> None:
    pytest.importorskip("sklearn")
    digits = data.digits()
    assert digits.train_images.shape == (1440, 1, 8, 8)
    assert digits.test_images.shape == (357, 1, 8, 8)
    normalised = digits.normalised(digits.train_images)
    assert normalised.dtype == torch.float32
    assert abs(float(normalised.mean())) < 1e-4
    assert float(normalised.std()) == pytest.approx(1, abs=1e-3)
    assert sorted(set(digits.test_labels.tolist())) == list(range(10))
    assert torch.equal(digits.train_images, data.digits().train_images)


@pytest.mark.parametrize("nested", ["", "cifar-10-batches-py"])
def test_cifar_is_read_from_its_directory_or_the_one_above(tmp_path: Path, nested: str) -> None:
    write_cifar(tmp_path / nested)
    cifar = data.load(str(tmp_path))
    assert cifar.train_images.shape == (5 * IMAGES_PER_FILE, 3, 32, 32)
    assert cifar.test_labels.tolist() == [0, 9, 3, 5]
    normalised = cifar.normalised(cifar.train_images)
    assert normalised.shape == cifar.train_images.shape
    assert normalised.mean(dim=(0, 2, 3)).tolist() == pytest.approx([0, 0, 0], abs=1e-3)
    assert normalised.std(dim=(0, 2, 3)).tolist() == pytest.approx([1, 1, 1], abs=1e-2)


def test_a_missing_directory_or_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nowhere is not a directory"):
        data.load(str(tmp_path / "nowhere"))
    write_cifar(tmp_path)
    (tmp_path / "data_batch_3").unlink()
    with pytest.raises(ConfigError, match="lacks data_batch_3: unpack"):
        data.load(str(tmp_path))


@pytest.mark.parametrize(
    "content",
    [b"", b"not a pickle", pickle.dumps({b"data": 1}), pickle.dumps([1]), pickle.dumps({})],
)
def test_a_broken_file_is_named(tmp_path: Path, content: bytes) -> None:
    write_cifar(tmp_path)
    (tmp_path / "data_batch_2").write_bytes(content)
    with pytest.raises(ConfigError, match="data_batch_2 is not a CIFAR-10 batch"):
        data.load(str(tmp_path))


class Malicious:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.path),)


def test_a_pickle_cannot_run_code(tmp_path: Path) -> None:
    write_cifar(tmp_path)
    (tmp_path / "test_batch").write_bytes(pickle.dumps(Malicious(tmp_path / "owned")))
    with pytest.raises(ConfigError, match="it asks for"):
        data.load(str(tmp_path))
    assert not (tmp_path / "owned").exists()
