"""The orchestrator against processes that behave well or badly; no transport involved."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from dblp.demo import orchestrate
from dblp.demo.orchestrate import DemoFailedError, replica_drift, run_side
from dblp.demo.record import SideRecord
from dblp.demo.settings import DemoSettings

np = pytest.importorskip("numpy")
FAKE = Path(__file__).with_name("fake_process.py")


def play(behaviour: str, out: Path) -> tuple[SideRecord, list[tuple[str, int, float]]]:
    seen: list[tuple[str, int, float]] = []
    record = run_side(
        "dblp",
        DemoSettings(workers=3, out=str(out)),
        [4],
        lambda *progress: seen.append(progress),
        [sys.executable, str(FAKE), behaviour],
    )
    return record, seen


def test_a_good_side_is_recorded_round_by_round(tmp_path: Path) -> None:
    record, seen = play("good", tmp_path)
    assert [r.step for r in record.rounds] == list(range(6))
    assert [step for _, step, _ in seen] == list(range(6))
    assert [r.step for r in record.burst_rounds] == [4]
    first = record.rounds[0]
    assert first.send_latency_s == pytest.approx(0.003), "the slowest of three workers"
    assert first.delivered_share == pytest.approx(27 / 30)
    assert first.gradient_norm == pytest.approx(2**0.5)
    assert record.accuracy == [0.9, 0.9]
    assert record.train_time_s == 3.0
    assert record.replica_drift == 2.0
    assert record.downlink_datagrams == 180


def test_a_killed_worker_is_named_and_the_witnesses_too(tmp_path: Path) -> None:
    started = time.monotonic()
    with pytest.raises(DemoFailedError) as caught:
        play("killed", tmp_path)
    message = str(caught.value)
    assert message.startswith("worker 1 was ended by SIGKILL")
    assert "worker 0 failed: rank 1 is gone" in message
    assert str(tmp_path / "logs" / "dblp-worker-1.log") in message
    assert time.monotonic() - started < 10


def test_an_error_of_a_worker_is_passed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(orchestrate, "ENDING_S", 0.5)
    with pytest.raises(DemoFailedError, match="worker 1 failed: the buffer is read-only: pass"):
        play("error", tmp_path)


def test_silence_ends_the_side(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(orchestrate, "EVALUATION_S", -29.0)
    with pytest.raises(DemoFailedError, match="has reported anything for 1 s: look into"):
        play("silent", tmp_path)


def test_a_server_that_dies_at_the_start_is_named(tmp_path: Path) -> None:
    with pytest.raises(DemoFailedError, match="server ended with status 3"):
        play("mute", tmp_path)


def test_a_server_that_does_not_end_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(orchestrate, "ENDING_S", 0.5)
    with pytest.raises(DemoFailedError, match="reported anything"):
        play("deaf", tmp_path)


def test_leaving_the_group_ends_every_process(tmp_path: Path) -> None:
    settings = DemoSettings(out=str(tmp_path))
    assignment = orchestrate.Assignment("dblp", settings, (), rank=1)
    with orchestrate.ProcessGroup([sys.executable, str(FAKE), "silent"]) as group:
        group.start("worker 1", assignment, tmp_path / "log")
        assert group.next_event(30)[1] == {"event": "ready"}
        process = group._children["worker 1"].process
        assert process.poll() is None
    assert process.poll() is not None


def test_drift_is_the_largest_difference_of_any_two_replicas() -> None:
    replicas = [np.array([0.0, 5.0]), np.array([1.0, 5.0]), np.array([-1.0, 5.5])]
    assert replica_drift(replicas) == 2.0
    assert replica_drift(replicas[:1]) == 0.0


def test_ctrl_c_ends_every_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    groups: list[orchestrate.ProcessGroup] = []
    enter = orchestrate.ProcessGroup.__enter__
    monkeypatch.setattr(
        orchestrate.ProcessGroup, "__enter__", lambda self: groups.append(self) or enter(self)
    )

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_side(
            "dblp",
            DemoSettings(out=str(tmp_path)),
            [],
            interrupt,
            [sys.executable, str(FAKE), "silent"],
        )
    (group,) = groups
    assert len(group._children) == 4
    assert all(child.process.poll() is not None for child in group._children.values())
