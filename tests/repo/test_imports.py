"""Who may import whom: the layers of docs/ARCHITECTURE.md as data, held against every import."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "dblp"

LEAVES = {"errors", "stats", "config", "congestion", "deadline", "buffers", "faults"}
BASE = LEAVES | {"wire", "fastpath", "tolerance"}

MATRIX: dict[str, set[str]] = {
    "errors": set(),
    "stats": {"errors"},
    "config": {"errors", "congestion", "deadline"},
    "deadline": {"errors", "tolerance"},
    "congestion": {"errors"},
    "metrics": {"errors", "stats"},
    "tolerance": {"errors"},
    "wire": {"errors"},
    "twin": {"errors", "wire"},
    "fastpath": {"errors", "extension", "twin"},
    "phase": {"errors", "tolerance"},
    "faults": {"errors", "fastpath", "wire"},
    "buffers": {"errors"},
    "proto": BASE,
    "core": BASE | {"proto", "phase"},
    "sim": BASE | {"proto", "phase", "core"},
    "io": BASE | {"proto", "metrics"},
    "collective": BASE | {"proto", "phase", "core", "io", "metrics"},
    "public": BASE | {"phase", "proto", "core", "io", "collective", "metrics"},
    "aio": BASE | {"collective"},
    "torch": BASE | {"phase", "core", "io", "collective", "metrics", "public"},
    "demo": BASE | {"phase", "core", "io", "collective", "metrics", "public", "torch"},
    "experiments": BASE
    | {"phase", "core", "io", "collective", "metrics", "public", "torch", "demo"},
    "cli": BASE
    | {"phase", "io", "collective", "metrics", "public", "sim", "demo", "torch", "experiments"},
}
"""Layer → layers that it may import besides itself."""

COLLECTIVE_ADAPTERS = {
    *("__init__", "server", "worker", "peer", "listener", "endpoint", "admission", "mesh"),
    "mesh_owner",
}
"""Modules of `collective` that own sockets or threads; all others are its sans-IO core."""

SANS_IO = {"proto", "phase", "core", "sim", "faults"}

SANS_IO_BANNED = {
    *("asyncio", "uvloop", "socket", "select", "selectors", "threading", "time", "torch"),
    *("logging", "secrets"),
}

TORCH_LAYERS = {"torch", "demo", "experiments"}

RANDOM_ALLOWED = {"Random"}
"""Of `random`: the class, for annotations and seeded instances."""

NUMPY_RANDOM_ALLOWED = {"Generator", "PCG64", "Philox", "SeedSequence", "default_rng"}

MODULES = sorted(PACKAGE.rglob("*.py"))


def layer_of(parts: tuple[str, ...]) -> str:
    """The layer of a module of the package, given as its path below `dblp`."""
    top = parts[0] if parts else "__init__"
    if top in ("__init__", "__main__"):
        # `python -m dblp` is the command line.
        return "public" if top == "__init__" else "cli"
    if top == "_fastpath":
        return "extension"
    if top.startswith("_fastpath_py"):
        return "twin"
    if top == "collective":
        module = parts[1] if len(parts) > 1 else "__init__"
        return "collective" if module in COLLECTIVE_ADAPTERS else "core"
    return top


def parts_of(path: Path) -> tuple[str, ...]:
    """`dblp/proto/session.py` → ("proto", "session"); a package stays ("proto", "__init__")."""
    return path.relative_to(PACKAGE).with_suffix("").parts


def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def imported(path: Path) -> Iterator[tuple[int, str]]:
    """(line, absolute dotted name) of everything that `path` imports, names included."""
    package = ("dblp", *parts_of(path)[:-1])
    for node in ast.walk(parse(path)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join((*base, *(node.module or "").split("."))).strip(".")
            for alias in node.names:
                yield node.lineno, f"{module}.{alias.name}"


def module_parts(dotted: str) -> tuple[str, ...]:
    """The parts of the module below `dblp` that `dotted` names; a trailing attribute is cut off."""
    parts = tuple(dotted.split(".")[1:])
    while parts:
        place = PACKAGE.joinpath(*parts)
        is_fastpath = parts == ("_fastpath",)
        if is_fastpath or place.is_dir() or place.with_suffix(".py").exists():
            return parts
        parts = parts[:-1]
    return parts


def by_name(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


@pytest.mark.parametrize("path", MODULES, ids=by_name)
def test_imports_go_down_the_layers_only(path: Path) -> None:
    layer = layer_of(parts_of(path))
    assert layer in MATRIX, f"{path.name} is in no layer: place it in MATRIX"
    for line, name in imported(path):
        if name.split(".")[0] != "dblp":
            continue
        target = layer_of(module_parts(name))
        assert target == layer or target in MATRIX[layer], (
            f"{by_name(path)}:{line}: the layer {layer} must not import {target} ({name})"
        )


@pytest.mark.parametrize("path", MODULES, ids=by_name)
def test_torch_is_imported_by_the_torch_glue_only(path: Path) -> None:
    if layer_of(parts_of(path)) in TORCH_LAYERS:
        return
    for line, name in imported(path):
        assert name.split(".")[0] != "torch", f"{by_name(path)}:{line} imports torch"


def sans_io_trouble(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """(line, what) of clocks, sockets, threads and global random sources in a module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] in SANS_IO_BANNED or alias.name == "numpy.random":
                    yield node.lineno, f"imports {alias.name}"
        elif isinstance(node, ast.ImportFrom) and not node.level:
            module = (node.module or "").split(".")[0]
            names = {alias.name for alias in node.names}
            if module in SANS_IO_BANNED:
                yield node.lineno, f"imports {node.module}"
            if module == "random" and names - RANDOM_ALLOWED:
                yield node.lineno, f"imports {names - RANDOM_ALLOWED} of random"
        elif isinstance(node, ast.Attribute):
            owner = ast.unparse(node.value)
            if owner == "random" and node.attr not in RANDOM_ALLOWED:
                yield node.lineno, f"uses random.{node.attr}"
            if owner in ("np.random", "numpy.random") and node.attr not in NUMPY_RANDOM_ALLOWED:
                yield node.lineno, f"uses {owner}.{node.attr}"
        elif isinstance(node, ast.Call):
            # Without a seed they take one from the operating system.
            unseeded = ("random.Random", "Random", "np.random.default_rng", "default_rng")
            if not node.args and not node.keywords and ast.unparse(node.func) in unseeded:
                yield node.lineno, f"calls {ast.unparse(node.func)} without a seed"


@pytest.mark.parametrize(
    "path", [path for path in MODULES if layer_of(parts_of(path)) in SANS_IO], ids=by_name
)
def test_the_core_reads_no_clock_no_socket_no_random_source(path: Path) -> None:
    trouble = [f"{by_name(path)}:{line} {what}" for line, what in sans_io_trouble(parse(path))]
    assert not trouble


@pytest.mark.parametrize(
    "source",
    [
        "import time",
        "import asyncio.events",
        "from socket import socket",
        "import random\nrandom.random()",
        "from random import choice",
        "import random\nrandom.Random()",
        "import numpy as np\nnp.random.rand(3)",
        "import numpy as np\nnp.random.default_rng()",
        "def f():\n    import logging",
    ],
)
def test_the_check_finds(source: str) -> None:
    assert list(sans_io_trouble(ast.parse(source)))


def test_the_check_lets_seeded_generators_pass() -> None:
    source = "import random\nimport numpy as np\nrandom.Random(7)\nnp.random.default_rng(7)"
    assert not list(sans_io_trouble(ast.parse(source)))


def test_importing_dblp_does_not_import_torch() -> None:
    program = "import sys, dblp; sys.exit(any(m in sys.modules for m in ('torch', 'matplotlib')))"
    subprocess.run([sys.executable, "-c", program], cwd=PACKAGE.parent, check=True, timeout=60)
