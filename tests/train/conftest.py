"""Ranks that all tests of the training layer share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.train.ranks import Ranks

pytest.importorskip("torch")


@pytest.fixture(scope="session")
def ranks() -> Iterator[Ranks]:
    """Up to four ranks with a gloo process group."""
    started = Ranks(4)
    yield started
    started.close()
