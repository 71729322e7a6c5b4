"""The fast paths that can be tested here: the twin always, the compiled one where it was built."""

from __future__ import annotations

import contextlib
import importlib
from types import ModuleType

import pytest


def _available() -> dict[str, ModuleType]:
    modules = {"python": importlib.import_module("dblp._fastpath_py")}
    with contextlib.suppress(ImportError):
        modules["compiled"] = importlib.import_module("dblp._fastpath")
    return modules


AVAILABLE = _available()

both = pytest.mark.parametrize("fastpath", AVAILABLE.values(), ids=list(AVAILABLE))
"""Runs a test on every available implementation, as the argument `fastpath`."""

twins = pytest.mark.skipif(
    "compiled" not in AVAILABLE, reason="the compiled fast path is not built"
)
"""For tests that compare the two."""
