"""Both implementations offer what the stub promises, and CI runs the compiled one."""

from __future__ import annotations

import ast
import os
from pathlib import Path
from types import ModuleType

import pytest

import dblp
from tests.fastpath.implementations import AVAILABLE, both

STUB = Path(dblp.__file__).with_name("_fastpath.pyi")


def test_ci_has_the_compiled_fast_path() -> None:
    if not os.environ.get("CI"):
        pytest.skip("only CI must have a compiler")
    assert "compiled" in AVAILABLE, "the extension was not built: run `make build`"


def _promised(body: list[ast.stmt]) -> set[str]:
    names = {node.name for node in body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    return names | {
        node.target.id
        for node in body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }


@both
def test_every_name_of_the_stub_exists(fastpath: ModuleType) -> None:
    assert _promised(ast.parse(STUB.read_text()).body) <= set(dir(fastpath))


@both
@pytest.mark.parametrize("name", ["Channel", "Reducer"])
def test_every_member_of_the_classes_exists(fastpath: ModuleType, name: str) -> None:
    (body,) = (
        node.body
        for node in ast.parse(STUB.read_text()).body
        if isinstance(node, ast.ClassDef) and node.name == name
    )
    made = (
        fastpath.Channel(-1, send_tag=1, recv_tag=2, chunk_bytes=64)
        if name == "Channel"
        else fastpath.Reducer(bytearray(64), [bytes(64)], 64, "float32")
    )
    assert _promised(body) <= set(dir(made))


@both
def test_constants(fastpath: ModuleType) -> None:
    assert fastpath.HEADER_BYTES == 24
    assert fastpath.MAX_SLOTS == 256
    assert (fastpath.EVENT, fastpath.QUIET, fastpath.BUDGET, fastpath.WAKE) == (1, 2, 4, 8)
    channel = fastpath.Channel(-1, send_tag=1, recv_tag=2, chunk_bytes=64)
    assert tuple(channel.counters()) == fastpath.COUNTERS
    assert not any(channel.counters().values())


def test_each_says_what_it_is() -> None:
    for name, module in AVAILABLE.items():
        assert (name == "compiled") == module.IS_COMPILED
        assert (module.crc32c_backend() == "python") == (name == "python")


def test_counters_are_the_same() -> None:
    assert len({module.COUNTERS for module in AVAILABLE.values()}) == 1
