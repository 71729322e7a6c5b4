"""Data sets from their standard layouts, and what is said when they are not there."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest

from dblp import ConfigError
from dblp.experiments.settings import Workload

pytest.importorskip("torch")

from dblp.experiments.images import images
from dblp.experiments.text import text


def cifar_100(folder: Path, labels: list[int]) -> None:
    for part in ("train", "test"):
        pixels = np.arange(len(labels) * 3072, dtype=np.uint32).astype(np.uint8)
        fields = {b"data": pixels.reshape(len(labels), 3072), b"fine_labels": labels}
        (folder / part).write_bytes(pickle.dumps(fields))


def test_cifar_100_is_read_and_cut(tmp_path: Path) -> None:
    nested = tmp_path / "cifar-100-python"
    nested.mkdir()
    cifar_100(nested, [3, 99, 0, 7])
    workload = Workload(model="alexnet", data="cifar100", samples=3, test_samples=2)
    found = images(workload, str(tmp_path))
    assert found.train_labels.tolist() == [3, 99, 0] and found.test_labels.tolist() == [3, 99]
    assert found.train_images.shape == (3, 3, 32, 32)
    assert found.train_images[0, 0, 0, :3].tolist() == [0, 1, 2]
    assert images(workload, str(nested)).train_labels.tolist() == [3, 99, 0]


def test_a_file_that_is_no_cifar_100_is_named(tmp_path: Path) -> None:
    cifar_100(tmp_path, [100])
    with pytest.raises(ConfigError, match="train is not a CIFAR-100 file"):
        images(Workload(model="alexnet", data="cifar100"), str(tmp_path))


@pytest.mark.parametrize("data", ["cifar10", "cifar100", "wikitext2"])
def test_missing_data_is_an_error_that_says_where_it_is(tmp_path: Path, data: str) -> None:
    load = text if data == "wikitext2" else images
    workload = Workload(model="any", data=data)
    with pytest.raises(ConfigError, match=f"needs {data}: pass --data DIR"):
        load(workload, None)
    with pytest.raises(ConfigError, match="is not a directory"):
        load(workload, str(tmp_path / "nowhere"))
    with pytest.raises(ConfigError, match="lacks"):
        load(workload, str(tmp_path))


def test_wikitext_by_words_with_a_limited_vocabulary(tmp_path: Path) -> None:
    folder = tmp_path / "wikitext-2"
    folder.mkdir()
    (folder / "wiki.train.tokens").write_text(" the cat the dog\n the cat\n", encoding="utf-8")
    (folder / "wiki.test.tokens").write_text(" the bird\n", encoding="utf-8")
    workload = Workload(model="gpt2", data="wikitext2", vocabulary=3)
    found = text(workload, str(tmp_path))
    # the (3), cat (2), <eos> (2); everything else is <unk>.
    assert found.vocabulary == 4
    assert found.train.tolist() == [0, 1, 0, 3, 2, 0, 1, 2]
    assert found.test.tolist() == [0, 3, 2]
    assert len(text(Workload(model="gpt2", data="wikitext2", samples=5), str(tmp_path)).train) == 5


def test_digits_are_large_enough_for_the_models() -> None:
    pytest.importorskip("sklearn")
    found = images(Workload(model="alexnet", data="digits", samples=4), None)
    assert found.train_images.shape == (4, 3, 32, 32)
    assert (found.train_images[:, 0] == found.train_images[:, 2]).all()
