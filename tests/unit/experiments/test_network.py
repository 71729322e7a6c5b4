"""Which network an experiment runs in."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest

from dblp import AdaptiveWindow, ConfigError, Unpaced
from dblp.congestion import within_host
from dblp.experiments import network
from dblp.experiments.assignment import Assignment
from dblp.experiments.catalogue import cells_of, experiment_of

ARGUMENTS = ["experiment", "resnet50", "--network", "1gbit"]


@pytest.fixture
def replaced(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Commands that this process would have become; every command is there."""
    commands: list[list[str]] = []
    monkeypatch.delenv(network.INSIDE, raising=False)
    monkeypatch.setattr(network.shutil, "which", lambda command: f"/usr/bin/{command}")
    monkeypatch.setattr(network, "_replace", lambda command, _: commands.append(command))
    return commands


def test_loopback_needs_nothing(replaced: list[list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network.shutil, "which", lambda _: None)
    network.enter("loopback", ARGUMENTS)
    assert not replaced


def test_the_same_command_starts_in_the_shaped_network_once(
    replaced: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(network, "_try", lambda *_: None)
    network.enter("1gbit", ARGUMENTS)
    (command,) = replaced
    assert (
        command[0] == "unshare"
        and command[1] in ("-n", "-Urn")
        and command[-6:] == ["-m", "dblp", *ARGUMENTS]
    )
    assert "tbf rate 1gbit" in " ".join(command)
    monkeypatch.setenv(network.INSIDE, "1gbit")
    network.enter("1gbit", ARGUMENTS)
    assert len(replaced) == 1


@pytest.mark.parametrize("shaped", [False, True])
def test_congestion_control_is_there_where_there_is_a_queue(
    shaped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(network.INSIDE, raising=False)
    if shaped:
        monkeypatch.setenv(network.INSIDE, "1gbit")
    (cell, *_) = cells_of(experiment_of("resnet50"), "small", 1)
    congestion = within_host(Assignment(cell, 1, None, "").config.congestion)
    assert isinstance(congestion, AdaptiveWindow if shaped else Unpaced)


def test_what_is_missing_is_named(
    replaced: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match="'10gbit': choose one of loopback, 1gbit"):
        network.enter("10gbit", ARGUMENTS)
    monkeypatch.setattr(network.shutil, "which", lambda command: None if command == "tc" else "x")
    with pytest.raises(ConfigError, match="needs the command tc, not found here: install"):
        network.enter("1gbit", ARGUMENTS)
    assert not replaced


def test_a_machine_that_does_not_allow_it_says_so(
    replaced: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: Any, **__: Any) -> None:
        raise subprocess.CalledProcessError(1, "unshare", stderr="unshare: not permitted\n")

    monkeypatch.setattr(network.subprocess, "run", refused)
    with pytest.raises(ConfigError, match=r"cannot be made .* \(unshare: not permitted\): run it"):
        network.enter("1gbit", ARGUMENTS)
    assert not replaced


def test_a_shaped_network_has_shorter_traffic_and_no_trainings_with_bursts() -> None:
    experiment = experiment_of("resnet50")
    loopback, shaped = (cells_of(experiment, "small", 1, each) for each in ("loopback", "1gbit"))
    rounds = [{c.workload.rounds for c in cells if c.kind == "traffic"} for cells in
              (loopback, shaped)]  # fmt: skip
    assert rounds == [{40}, {12}]
    assert any(c.bursts.count for c in loopback if c.kind == "train")
    assert not any(c.bursts.count for c in shaped if c.kind == "train")
    assert any(c.bursts.count for c in shaped if c.kind == "traffic")
    paper = cells_of(experiment, "paper", 1, "1gbit")
    assert {c.workload.rounds for c in paper if c.kind == "traffic"} == {40}
