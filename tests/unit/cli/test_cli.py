"""The command line as a user meets it."""

from __future__ import annotations

import subprocess
import sys

import pytest
from typer.testing import CliRunner

from dblp.cli import app

runner = CliRunner()


def dblp(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "dblp", *arguments], capture_output=True, text=True, timeout=60
    )


@pytest.mark.parametrize("command", ["demo", "server", "bench", "doctor"])
def test_help_of_every_command_shows_examples(command: str) -> None:
    result = runner.invoke(app, [command, "--help"])
    assert result.exit_code == 0
    assert "Examples" in result.output
    assert f"dblp {command}" in result.output


def test_help_without_a_command_lists_all() -> None:
    result = runner.invoke(app, ["--help"])
    assert result.exit_code == 0
    for command in ("demo", "server", "bench", "doctor"):
        assert f"dblp {command}" in result.output


def test_help_loads_neither_torch_nor_matplotlib() -> None:
    code = (
        "import sys; import dblp.cli; "
        "sys.exit(bool({'torch', 'matplotlib', 'sklearn'} & sys.modules.keys()))"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


def test_version() -> None:
    result = runner.invoke(app, ["--version"])
    assert result.exit_code == 0
    assert "fast path" in result.output


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["demo", "--workers", "0"], 1, "--workers is 0: choose 1 to 64"),
        (["demo", "--data", "/nonexistent"], 1, "--data /nonexistent is not a directory"),
        (["demo", "--out", "/dev/null/x"], 1, "--out /dev/null/x cannot be written"),
        (["demo", "--high", "lots"], 1, "lots"),
        (["demo", "--epochs", "many"], 2, "--epochs"),
        (["server", "--low", "50%"], 1, "the low tolerance 50% is above the high tolerance"),
        (["server", "--policy", "best"], 2, "--policy"),
        (["nonsense"], 2, "nonsense"),
    ],
)
def test_a_mistake_is_one_sentence_without_a_traceback(
    arguments: list[str], status: int, message: str
) -> None:
    pytest.importorskip("torch")
    result = dblp(*arguments)
    assert result.returncode == status
    assert message in result.stderr
    assert "Traceback" not in result.stderr
    if status == 1:
        assert result.stderr.count("\n") == 1
        assert result.stderr.startswith("dblp: error: ")
