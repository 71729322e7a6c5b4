"""Every example runs as its first line says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import dblp

ROOT = Path(__file__).parents[2]
LIMIT_S = 60.0


TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")


def run(*command: str) -> str:
    """What `python COMMAND` prints; it must end well."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *command],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_loopback() -> None:
    lines = run("examples/loopback.py").splitlines()
    assert len(lines) == 12
    assert lines[0].split()[1:3] == ["critical", "0.8%"]
    assert lines[-1].split()[1:3] == ["normal", "40.8%"]


def test_point_to_point() -> None:
    assert "0 wrong elements" in run("examples/point_to_point.py")


def test_custom_policy() -> None:
    lines = run("examples/custom_policy.py").splitlines()
    assert "critical" in lines[0] and "normal" in lines[5] and "critical" in lines[6]


def test_numpy_worker() -> None:
    with dblp.ParameterServer("127.0.0.1:0", workers=1) as server:
        out = run("examples/numpy_worker.py", server.address, "--rank", "0", "--steps", "3")
    assert len(out.splitlines()) == 2


def number(pattern: str, out: str) -> float:
    """The one number that `pattern` finds in what a script printed."""
    return float(re.findall(pattern, out)[0])


def test_ddp_cifar_learns_the_digits() -> None:
    for needed in ("torch", "sklearn"):
        pytest.importorskip(needed)
    out = run(*TORCHRUN, "examples/ddp_cifar.py", "--steps", "40")
    assert "dblp on digits, 2 ranks" in out and "40 of 40 steps critical" not in out
    assert 0 <= number(r"hidden behind the backward pass: (\d+)%", out) <= 100
    assert "replicas differ by at most 0\n" in out
    assert number(r"test accuracy ([\d.]+)%", out) > 60


def test_ddp_gpt2_learns_some_python() -> None:
    for needed in ("torch", "transformers"):
        pytest.importorskip(needed)
    size = ("--steps", "15", "--batch", "4", "--length", "64")
    out = run(*TORCHRUN, "examples/ddp_gpt2.py", *size)
    assert "dblp on Python's source, 2 ranks" in out and "steps critical" in out
    assert 0 <= number(r"hidden behind the backward pass: (\d+)%", out) <= 100
    assert "replicas differ by at most 0\n" in out
    assert number(r"([\d.]+) bits per byte", out) < 7  # of 8 without any training


def test_ddp_cifar_without_tolerance_has_the_losses_of_gloo() -> None:
    for needed in ("torch", "sklearn"):
        pytest.importorskip(needed)
    losses = []
    for transport in ("gloo", "dblp"):
        exact = ("--transport", transport, "--low", "0", "--high", "0", "--steps", "12")
        out = run(*TORCHRUN, "examples/ddp_cifar.py", *exact)
        losses.append([float(loss) for loss in re.findall(r"loss ([\d.]+)", out)])
    assert len(losses[0]) == 13
    assert losses[0] == pytest.approx(losses[1], rel=0, abs=2e-4)  # four digits are printed


def test_ddp_gpt2_reads_wikitext(tmp_path: Path) -> None:
    for needed in ("torch", "transformers"):
        pytest.importorskip(needed)
    for part in ("train", "valid"):
        (tmp_path / f"wiki.{part}.tokens").write_text("= A title =\n the <unk> cat sat .\n" * 50)
    size = ("--steps", "2", "--batch", "1", "--length", "32", "--data", str(tmp_path))
    out = run(*TORCHRUN, "examples/ddp_gpt2.py", "--transport", "gloo", *size)
    assert "gloo on WikiText-2, 2 ranks" in out


def test_every_example_has_a_test() -> None:
    tested = Path(__file__).read_text(encoding="utf-8")
    assert not [path.name for path in ROOT.glob("examples/*.py") if path.name not in tested]


@pytest.mark.parametrize("path", sorted(ROOT.glob("examples/*.py")), ids=lambda path: path.name)
def test_every_example_says_how_to_run_it(path: Path) -> None:
    assert f"examples/{path.name}" in path.read_text(encoding="utf-8").split('"""')[1]
