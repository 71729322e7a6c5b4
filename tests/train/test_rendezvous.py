"""How ranks find each other."""

from __future__ import annotations

import os
import time
from typing import Any

import dblp
import dblp.torch
from dblp.io import interfaces
from dblp.torch import rendezvous
from dblp.torch.group import RankGroup
from tests.train.models import batches, loss_of, perceptron, wrapped
from tests.train.ranks import Job, Ranks, busy_port_after_a_free_one


def steps(job: Job, state: dblp.torch.DBLPState, model: Any, count: int = 2) -> int:
    for batch in batches(job.rank, count):
        loss_of(model, batch).backward()
    return state.step


def listens(job: Job, **variables: str) -> tuple[str, int]:
    """(address that this rank listens on, steps made) with environment variables set."""
    os.environ.update(variables)
    try:
        model = wrapped(perceptron(), job)
        with dblp.torch.register(model, tolerance=0) as state:
            address = state.engine._pipeline.collective.address  # type: ignore[attr-defined]
            return address, steps(job, state, model)
    finally:
        for name in variables:
            os.environ.pop(name, None)


def test_field_01_ranks_on_one_host_use_loopback_and_listen_nowhere_else(ranks: Ranks) -> None:
    for address, made in ranks.run(listens, 3):
        assert address.startswith("127.0.0.1:")
        assert made == 2


def test_field_02_a_named_interface_is_used(ranks: Ranks) -> None:
    for _, made in ranks.run(listens, 2, DBLP_SOCKET_IFNAME="=lo"):
        assert made == 2


def names_nothing(job: Job) -> str:
    if job.rank == 1:
        os.environ["DBLP_SOCKET_IFNAME"] = "bond7"
    try:
        dblp.torch.register(wrapped(perceptron(), job))
    except dblp.ConfigError as error:
        return str(error)
    finally:
        os.environ.pop("DBLP_SOCKET_IFNAME", None)
    return "nothing"


def test_field_02_all_ranks_learn_that_one_has_no_such_interface(ranks: Ranks) -> None:
    for text in ranks.run(names_nothing, 2):
        assert text.startswith("rank 1: DBLP_SOCKET_IFNAME is 'bond7'")
        assert "lo (127.0.0.1)" in text


def comes_alone(job: Job, name: str) -> tuple[str, float]:
    began = time.monotonic()
    try:
        RankGroup(name, 0, 2, host="127.0.0.1", timeout_s=1.0)
    except dblp.PeerLostError as error:
        return str(error), time.monotonic() - began
    return "nothing", 0.0


def test_field_02_ranks_that_cannot_reach_each_other_are_told_what_to_set(ranks: Ranks) -> None:
    ((text, took_s),) = ranks.run(comes_alone, 1, name=f"alone {os.getpid()} {time.time()}")
    assert "127.0.0.1" in text
    assert "DBLP_SOCKET_IFNAME" in text
    assert took_s < 10.0


def over_ipv6(job: Job) -> tuple[str, int]:
    rendezvous.LOOPBACK = "::1"
    try:
        return listens(job)
    finally:
        rendezvous.LOOPBACK = "127.0.0.1"


def test_field_03_ipv6(ranks: Ranks) -> None:
    if not any(item.address == "::1" for item in interfaces.interfaces()):
        import pytest

        pytest.skip("this host has no IPv6 loopback")
    for address, made in ranks.run(over_ipv6, 2):
        assert address.startswith("[::1]:")
        assert made == 2


def other_hosts(job: Job) -> tuple[str, int]:
    """As if every rank were on a host of its own."""
    real = rendezvous.host_key
    rendezvous.host_key = lambda: f"host {job.rank}"  # type: ignore[assignment]
    try:
        return listens(job)
    finally:
        rendezvous.host_key = real


def test_ranks_on_several_hosts_listen_on_all_interfaces(ranks: Ranks) -> None:
    for address, made in ranks.run(other_hosts, 2):
        assert address.startswith(("0.0.0.0:", "[::]:"))
        assert made == 2


def taken(job: Job, port: int) -> str:
    os.environ["LOCAL_RANK"] = str(job.rank)
    try:
        dblp.torch.register(wrapped(perceptron(), job), port=port)
    except dblp.DBLPError as error:
        return f"{type(error).__name__}: {error}"
    finally:
        os.environ.pop("LOCAL_RANK")
    return "nothing"


def test_field_04_a_port_in_use_is_named_on_all_ranks(ranks: Ranks) -> None:
    with busy_port_after_a_free_one() as busy:
        first, second = ranks.run(taken, 2, port=busy - 1)
    assert f"127.0.0.1:{busy} is in use" in second
    assert "rank 1" in first
    assert f"127.0.0.1:{busy} is in use" in first


def two_jobs(job: Job) -> int:
    """Ranks 0 and 1, and ranks 2 and 3, are jobs of their own."""
    import torch.distributed as dist

    groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    mine = Job(job.rank, 2, groups[job.rank // 2])
    model = wrapped(perceptron(), mine)
    with dblp.torch.register(model, tolerance="10%") as state:
        return steps(mine, state, model, 5)


def test_field_04_two_jobs_in_one_store(ranks: Ranks) -> None:
    assert ranks.run(two_jobs, 4) == [5] * 4


def meets_twice(job: Job) -> list[str]:
    """The nonces of two registrations."""
    seen = []
    for _ in range(2):
        with dblp.torch.register(wrapped(perceptron(), job)) as state:
            assert state._meeting is not None
            seen.append(state._meeting.nonce)
    return seen


def test_field_23_every_rendezvous_has_a_nonce_of_its_own(ranks: Ranks) -> None:
    results = ranks.run(meets_twice, 2)
    assert results[0] == results[1]
    assert results[0][0] != results[0][1]


def joins_a_server(job: Job, address: str) -> tuple[int, list[str], bool]:
    model = wrapped(perceptron(), job)
    seen = []
    with dblp.torch.register(model, address=address) as state:
        link = state.engine._pipeline.collective
        for batch in batches(job.rank, 8):
            loss_of(model, batch).backward()
            assert state.last_report is not None
            seen.append(state.last_report.tolerance)
        return state.step, seen, hasattr(link, "port")


def test_field_27_one_open_port_only(ranks: Ranks) -> None:
    """A server elsewhere: no rank listens, and the server's policy decides."""
    policy = dblp.Schedule([(0, "1%"), (3, "30%")])
    with dblp.ParameterServer("127.0.0.1:0", workers=2, policy=policy) as server:
        for made, seen, has_port in ranks.run(joins_a_server, 2, address=server.address):
            assert made == 8
            assert seen[0] == "1%"
            assert seen[-1] == "30%"
            assert not has_port


def expects_no_drift(job: Job, address: str) -> str:
    try:
        dblp.torch.register(wrapped(perceptron(), job), address=address)
    except dblp.ConfigError as error:
        return str(error)
    return "nothing"


def test_field_18_a_server_elsewhere_must_not_make_replicas_drift_unasked(ranks: Ranks) -> None:
    with dblp.ParameterServer("127.0.0.1:0", workers=2, downlink="lossy") as server:
        for text in ranks.run(expects_no_drift, 2, address=server.address):
            assert "has downlink='lossy', the ranks 'exact'" in text


def one_server(job: Job) -> tuple[int, str]:
    model = wrapped(perceptron(), job)
    with dblp.torch.register(model, topology="server", tolerance=0) as state:
        address = state.engine._pipeline.collective.address  # type: ignore[attr-defined]
        return steps(job, state, model), address


def test_a_parameter_server_in_rank_0(ranks: Ranks) -> None:
    assert [made for made, _ in ranks.run(one_server, 3)] == [2, 2, 2]
