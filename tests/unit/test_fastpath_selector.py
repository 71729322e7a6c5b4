"""Which fast path is loaded, and what the environment may say about it."""

from __future__ import annotations

import ast
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

import dblp
from dblp import fastpath as selector

PACKAGE = Path(dblp.__file__).parent
HAS_COMPILED = importlib.util.find_spec("dblp._fastpath") is not None


def ask(choice: str, statement: str = "print(dblp.FASTPATH)") -> subprocess.CompletedProcess[str]:
    """Runs `statement` in a new process with DBLP_FASTPATH=`choice`."""
    return subprocess.run(
        [sys.executable, "-c", f"import dblp; {statement}"],
        env={**os.environ, "DBLP_FASTPATH": choice, "PYTHONPATH": str(PACKAGE.parent)},
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_python_can_be_forced() -> None:
    assert ask("python").stdout.strip() == "python"


@pytest.mark.skipif(not HAS_COMPILED, reason="the extension is not built")
def test_compiled_is_the_default_where_it_was_built() -> None:
    assert ask("").stdout.strip() == "compiled"
    assert ask("compiled").stdout.strip() == "compiled"


def test_forcing_compiled_where_it_is_missing_is_a_config_error() -> None:
    hide = "import sys; sys.modules['dblp._fastpath'] = None; import dblp"
    result = subprocess.run(
        [sys.executable, "-c", hide],
        env={**os.environ, "DBLP_FASTPATH": "compiled", "PYTHONPATH": str(PACKAGE.parent)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert result.returncode != 0
    assert "ConfigError: DBLP_FASTPATH is compiled" in result.stderr


def test_an_unknown_choice_is_a_config_error() -> None:
    assert "ConfigError: DBLP_FASTPATH is 'fast'" in ask("fast").stderr


def test_ci_runs_with_the_compiled_fast_path() -> None:
    required = os.environ.get("CI") or os.environ.get("DBLP_EXTENSIONS") == "require"
    if required and not os.environ.get("DBLP_FASTPATH"):
        assert dblp.FASTPATH == "compiled"


def test_the_selector_exports_the_whole_stub() -> None:
    names: set[str] = set()
    for node in ast.parse((PACKAGE / "_fastpath.pyi").read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.add(node.target.id)
    assert set(selector.__all__) == names | {"FASTPATH"}
    assert all(hasattr(selector, name) for name in names)


def test_the_flag_says_what_is_loaded() -> None:
    assert (dblp.FASTPATH == "compiled") is bool(selector.IS_COMPILED)
