"""Real scripts under torchrun: deaths, restarts, interrupts and exits."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.train.ranks import free_port

ROOT = Path(__file__).parents[2]
START_LIMIT_S = 60.0
SOON_S = 5.0


@contextmanager
def torchrun(
    role: str, folder: Path, *options: str, **variables: str
) -> Iterator[subprocess.Popen[str]]:
    """torchrun of two or three ranks; ended at the end in any case."""
    folder.mkdir(exist_ok=True)
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "torch.distributed.run", *options),
            *(str(Path(__file__).with_name("script.py")), role, str(folder)),
        ],
        cwd=ROOT,
        env={
            **{key: value for key, value in os.environ.items() if key != "RANK"},
            "PYTHONPATH": str(ROOT),
            "OMP_NUM_THREADS": "1",
            **variables,
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def lines(folder: Path, rank: int, words: str, limit_s: float = START_LIMIT_S) -> list[str]:
    """The lines of a rank, once one of them has `words`."""
    until = time.monotonic() + limit_s
    while time.monotonic() < until:
        file = folder / str(rank)
        text = file.read_text() if file.exists() else ""
        if words in text:
            return text.splitlines()
        time.sleep(0.02)
    raise AssertionError(f"rank {rank} never wrote {words!r}: {text}")


def test_the_script_of_the_readme_runs(tmp_path: Path) -> None:
    """As it stands there, under the command that stands there."""
    readme = (ROOT / "README.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```$", readme, re.M | re.S)
    (script,) = [block for block in blocks if "dblp.torch.register" in block]
    assert "torchrun --nproc-per-node 2 train.py" in readme
    (tmp_path / "train.py").write_text(script)
    command = ["--nproc-per-node", "2", f"--master-port={free_port()}", "train.py"]
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", *command],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=START_LIMIT_S,
    )
    losses = [float(line.split()[1]) for line in done.stdout.splitlines() if line[:1].isdigit()]
    assert len(losses) == 5, done.stderr
    assert losses[-1] < losses[0]


def local(ranks: int, **more: object) -> list[str]:
    where = f"127.0.0.1:{free_port()}"
    options = {"nproc-per-node": ranks, "rdzv-backend": "c10d", "rdzv-endpoint": where, **more}
    return [f"--{name}={value}" for name, value in options.items()]


def test_field_09_a_rank_is_killed(tmp_path: Path) -> None:
    """Every other rank raises PeerLostError that names it within 5 seconds."""
    with torchrun("hurt", tmp_path, *local(3)):
        ready = [lines(tmp_path, rank, "ready")[0] for rank in range(3)]
        time.sleep(0.3)  # in the middle of the steps
        killed = time.time()
        os.kill(int(ready[1].split()[1]), signal.SIGKILL)
        for rank in (0, 2):
            last = lines(tmp_path, rank, "Error", SOON_S)[-1]
            seen, _, text = last.partition(" ")
            assert text.startswith("PeerLostError: ")
            assert "rank 1" in text
            assert float(seen) - killed < SOON_S


@pytest.mark.parametrize(
    ("timeouts", "kind", "limit_s"),
    [
        # Ranks may be busy for half an hour, as by default; but this one does not even breathe.
        ("20 1800", "PeerLostError", 20.0),
        ("2 2", "RoundTimeoutError", 10.0),
    ],
    ids=["silence", "straggler"],
)
def test_field_09_a_rank_is_stopped(
    tmp_path: Path, timeouts: str, kind: str, limit_s: float
) -> None:
    """SIGSTOP: its sockets stay open and nothing says that it is gone.  Every other rank has an
    error that names it: after a third of `timeout_s` in which nothing was heard of it, or after
    `timeout_s` where that is less than the 5 s that silence needs at least."""
    with torchrun("hurt", tmp_path, *local(3), TEST_TIMEOUTS=timeouts):
        ready = [lines(tmp_path, rank, "ready")[0] for rank in range(3)]
        victim = int(ready[1].split()[1])
        time.sleep(0.3)  # in the middle of the steps
        os.kill(victim, signal.SIGSTOP)
        try:
            for rank in (0, 2):
                _, _, text = lines(tmp_path, rank, "Error", limit_s)[-1].partition(" ")
                said = re.fullmatch(rf"{kind}: (?:rank \d: )?(.*)", text)  # who says so, and what
                assert said is not None, text
                assert set(re.findall(r"rank (\d)", said[1])) == {"1"}
        finally:
            os.kill(victim, signal.SIGKILL)


def test_field_22_and_23_torchrun_restarts_on_the_same_ports(tmp_path: Path) -> None:
    """Rank 1 dies once; torchrun starts all again, on the same ports, and they finish."""
    port = free_port(2)
    options = local(2, **{"max-restarts": 1, "monitor-interval": 1})
    # Otherwise gloo itself may read the addresses of the first attempt from torchrun's store.
    fresh = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    with torchrun("restart", tmp_path, *options, TEST_PORT=str(port), **fresh) as process:
        output, _ = process.communicate(timeout=START_LIMIT_S)
        assert process.returncode == 0, output
    for rank in range(2):
        seen = (tmp_path / str(rank)).read_text().splitlines()
        starts = [line.split()[2:] for line in seen if line.startswith("ready")]
        assert starts == [["0", str(port + rank)], ["1", str(port + rank)]]
        assert seen[-1] == "done 12"


def test_field_04_two_jobs_on_one_host(tmp_path: Path) -> None:
    """At the same time, without a word about ports; they end without `close()`, too."""
    folders = [tmp_path / "a", tmp_path / "b"]
    with (
        torchrun("leave", folders[0], *local(2)) as first,
        torchrun("leave", folders[1], *local(2)) as second,
    ):
        for process in (first, second):
            output, _ = process.communicate(timeout=START_LIMIT_S)
            assert process.returncode == 0, output
    for folder in folders:
        assert [lines(folder, rank, "done")[-1] for rank in range(2)] == ["done 12"] * 2


def test_field_24_ctrl_c(tmp_path: Path) -> None:
    """SIGINT gets through while backward() waits for a rank that has stopped."""
    with torchrun("interrupt", tmp_path, *local(2)):
        ready = [lines(tmp_path, rank, "ready")[0] for rank in range(2)]
        pids = [int(line.split()[1]) for line in ready]
        time.sleep(0.3)
        os.kill(pids[1], signal.SIGSTOP)
        try:
            time.sleep(0.5)  # rank 0 waits for it now
            os.kill(pids[0], signal.SIGINT)
            assert lines(tmp_path, 0, "interrupted", 3.0)[-1] == "interrupted"
        finally:
            os.kill(pids[1], signal.SIGCONT)
