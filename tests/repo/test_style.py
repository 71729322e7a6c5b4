"""The sizes and names that keep the code readable; see CONTRIBUTING.md."""

from __future__ import annotations

import ast
import re
import subprocess
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

FILE_LINES_MAX = 400
FUNCTION_LINES_MAX = 70
LINE_LENGTH_MAX = 100

BANNED_NAMES = {"utils", "util", "helpers", "helper", "common", "manager"}

CODE_SUFFIXES = {".py", ".pyi", ".pyx", ".pxd", ".pxi", ".h", ".c"}
TEXT_SUFFIXES = CODE_SUFFIXES | {".md", ".toml", ".txt", ".cfg", ".sh", ".yml", ".yaml", ".json"}

# In pieces, so that this file does not match itself.
MACHINE_PATH = re.compile("(?<![\\w.])/(?:" + "|".join(["work", "root", "home", "Users"]) + ")/")


@cache
def files() -> tuple[Path, ...]:
    """All files of the repository, whether committed yet or not."""
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=False,
    )
    if listing.returncode == 0:
        found = [ROOT / name for name in listing.stdout.decode().split("\0") if name]
    else:
        # An unpacked source archive: look where sources lie.
        found = [
            path
            for folder in ("dblp", "tests", "bench", "examples", "docs")
            for path in (ROOT / folder).rglob("*")
            if "__pycache__" not in path.parts
        ]
    return tuple(sorted(path for path in found if path.is_file()))


def with_suffix(*suffixes: str) -> list[Path]:
    return [path for path in files() if path.suffix in suffixes]


def by_name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def lines_of(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines()


@pytest.mark.parametrize("path", with_suffix(*CODE_SUFFIXES), ids=by_name)
def test_files_are_short(path: Path) -> None:
    assert len(lines_of(path)) <= FILE_LINES_MAX


@pytest.mark.parametrize("path", with_suffix(".py"), ids=by_name)
def test_functions_are_short(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            assert length <= FUNCTION_LINES_MAX, f"{node.name} in line {node.lineno}: {length}"


@pytest.mark.parametrize("path", with_suffix(*CODE_SUFFIXES), ids=by_name)
def test_lines_fit_100_columns(path: Path) -> None:
    long = [number for number, line in enumerate(lines_of(path), 1) if len(line) > LINE_LENGTH_MAX]
    assert not long, f"{by_name(path)}, lines {long}"


def test_no_file_is_named_after_nothing() -> None:
    vague = [by_name(path) for path in files() if BANNED_NAMES & {path.stem, path.parent.name}]
    assert not vague


def test_nothing_mentions_the_paths_of_one_machine() -> None:
    found = [
        f"{by_name(path)}:{number}"
        for path in files()
        if path.suffix in TEXT_SUFFIXES or path.name in ("Makefile", "run")
        for number, line in enumerate(lines_of(path), 1)
        if MACHINE_PATH.search(line)
    ]
    assert not found
