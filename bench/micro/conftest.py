"""Real sizes with `--benchmark-enable`, smoke sizes without; both fast paths; rates in the JSON."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from bench.harness import commit, machine

TWIN_BYTES_MAX = 300_000
"""The Python twin is there to be read: large buffers would show the same rate, minutes later."""

MARKER = (
    "sizes(full, smoke): buffer sizes in bytes for the argument `nbytes`, with --benchmark-enable"
    " and without"
)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", MARKER)


def is_full(config: pytest.Config) -> bool:
    """Whether this run measures."""
    return bool(config.getoption("benchmark_enable"))


def fast_paths() -> list[str]:
    """Names of the fast paths that can be loaded here, the compiled one first."""
    names = []
    for name, module in (("compiled", "dblp._fastpath"), ("python", "dblp._fastpath_py")):
        try:
            importlib.import_module(module)
        except ImportError:
            continue
        names.append(name)
    return names


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Every size on every fast path, but large sizes on the compiled one only."""
    mark = metafunc.definition.get_closest_marker("sizes")
    if mark is None:
        return
    sizes = mark.kwargs["full" if is_full(metafunc.config) else "smoke"]
    if "fastpath" not in metafunc.fixturenames:
        metafunc.parametrize("nbytes", sizes, ids=[f"{n}B" for n in sizes])
        return
    cases = [
        pytest.param(name, nbytes, id=f"{name}-{nbytes}B")
        for name in fast_paths()
        for nbytes in sizes
        if name == "compiled" or nbytes <= TWIN_BYTES_MAX
    ]
    metafunc.parametrize(("fastpath", "nbytes"), cases, indirect=["fastpath"])


@pytest.fixture
def fastpath(request: pytest.FixtureRequest) -> Any:
    """A fast path module; `sizes` says which (above)."""
    return importlib.import_module(
        "dblp._fastpath" if request.param == "compiled" else "dblp._fastpath_py"
    )


@pytest.fixture
def full(request: pytest.FixtureRequest) -> bool:
    """Whether this run measures."""
    return is_full(request.config)


@pytest.fixture
def repeat(benchmark: Any, full: bool) -> Callable[..., Any]:
    """repeat(function, setup, rounds): times `function(*setup()[0])`, once in a smoke run.

    For steps that use up what they work on; `setup` is not timed and returns (args, kwargs).
    """

    def run(function: Callable[..., Any], setup: Callable[[], Any], rounds: int) -> Any:
        if not full:
            return benchmark.pedantic(function, setup=setup, rounds=1)
        return benchmark.pedantic(function, setup=setup, rounds=rounds, warmup_rounds=2)

    return run


@pytest.fixture
def moves(benchmark: Any) -> Callable[[int], None]:
    """moves(nbytes): each call handles that many bytes, so the JSON can show a rate."""

    def note(nbytes: int) -> None:
        benchmark.extra_info["bytes_per_call"] = nbytes

    return note


def gradient(nbytes: int, dtype: str = "float32") -> np.ndarray:
    """`nbytes` bytes (rounded down to whole elements) like a gradient; bfloat16 comes as uint16.

    Not zeros: fresh zero pages are all the same one, and reading them is too fast to be true.
    """
    tile = np.random.default_rng(7).standard_normal(1 << 16, dtype=np.float32)
    if dtype == "bfloat16":
        tile = (tile.view(np.uint32) >> 16).astype(np.uint16)
    else:
        tile = tile.astype(dtype)
    return np.resize(tile, nbytes // tile.itemsize)


def pytest_benchmark_update_machine_info(config: pytest.Config, machine_info: Any) -> None:
    machine_info.update(machine())


def pytest_benchmark_update_json(
    config: pytest.Config, benchmarks: list[Any], output_json: dict[str, Any]
) -> None:
    """Adds what a reader wants to know of each (p95, MB/s) and leaves the raw samples out."""
    output_json["commit"] = commit()
    for entry in output_json["benchmarks"]:
        stats = entry["stats"]
        samples = stats.pop("data", None)
        if samples:
            stats["p95"] = float(np.percentile(samples, 95))
        nbytes = entry["extra_info"].get("bytes_per_call")
        if nbytes and stats["median"]:
            entry["extra_info"]["mb_per_s"] = round(nbytes / stats["median"] / 1e6, 1)
