"""The benches' peers and network lab work at all, at tiny sizes: nothing here measures speed."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.kernel import available_congestion, own_udp_counters
from bench.netlab import NetworkLab, lab_unavailable
from bench.transport.peers.gloo_ring import run_gloo_ring
from bench.transport.peers.raw_udp import run_raw_udp
from bench.transport.peers.role import PeerError, PeerTimeoutError, Role, python_command
from bench.transport.peers.tcp_flow import run_tcp_flow
from bench.transport.peers.team import Team

_REPOSITORY = Path(__file__).resolve().parents[2]
_NO_LAB = lab_unavailable()


def _loopback_down() -> bool:
    """As in a fresh network namespace: `unshare -Urn` starts without addresses."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        return probe.connect_ex(("127.0.0.1", 9)) != 0


needs_loopback = pytest.mark.skipif(_loopback_down(), reason="the loopback interface is down")
needs_lab = pytest.mark.skipif(_NO_LAB is not None, reason=str(_NO_LAB))
needs_compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")

_CONGESTION_PROBE = """
import socket, sys
listener = socket.create_server((sys.argv[1], 0))
client = socket.create_connection(listener.getsockname())
server, _ = listener.accept()
names = [s.getsockopt(socket.IPPROTO_TCP, 13, 16).rstrip(b"\\0").decode() for s in (client, server)]
print(*names)
"""


@pytest.fixture
def lab() -> Iterator[NetworkLab]:
    with NetworkLab(2) as network:
        yield network


# -- the lab --------------------------------------------------------------------------------------


@needs_lab
def test_hosts_reach_each_other_and_two_labs_do_not_collide(lab: NetworkLab) -> None:
    with NetworkLab(2) as other:
        assert run_tcp_flow(lab, 0, 1, 10_000, 1, None).elapsed_s
        assert run_tcp_flow(other, 0, 1, 10_000, 1, None).elapsed_s


@needs_lab
@pytest.mark.parametrize("name", available_congestion())
def test_congestion_control_reaches_both_ends(lab: NetworkLab, name: str) -> None:
    lab.set_congestion(name)
    for address in (lab.address(0), "127.0.0.1"):
        assert lab.run(0, sys.executable, "-c", _CONGESTION_PROBE, address).split() == [name, name]


@needs_lab
def test_loss_drops_what_it_names_and_goes_away_again(lab: NetworkLab) -> None:
    lab.set_loss(1_000_000, protocol="udp")
    assert not _datagram_arrives(lab)
    assert run_tcp_flow(lab, 0, 1, 10_000, 1, None).elapsed_s
    lab.set_loss(0)
    assert _datagram_arrives(lab)


def _datagram_arrives(lab: NetworkLab) -> bool:
    before = lab.udp_counters(0)
    sink = lab.popen(
        0,
        [sys.executable, "-c", _UDP_SINK, lab.address(0)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert sink.stdout is not None and sink.stdout.readline() == b"ready\n"
    lab.exec(1, [sys.executable, "-c", _UDP_PROBE, lab.address(0)], check=True)
    arrived = sink.wait(5) == 0
    sink.stdout.close()
    assert (lab.udp_counters(0) - before).in_datagrams == int(arrived)
    return arrived


_UDP_PROBE = """
import socket, sys
socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", (sys.argv[1], 5353))
"""
_UDP_SINK = """
import socket, sys
sink = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
sink.bind((sys.argv[1], 5353))
sink.settimeout(1)
print("ready", flush=True)
sink.recv(1)
"""


@needs_lab
def test_a_full_receive_buffer_is_counted(lab: NetworkLab) -> None:
    flood = (
        "import socket, sys, time\n"
        "sink = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n"
        "sink.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)\n"
        "sink.bind((sys.argv[1], 0))\n"
        "sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n"
        "for _ in range(200): sender.sendto(bytes(1400), sink.getsockname())\n"
    )
    before = lab.udp_counters(0)
    lab.run(0, sys.executable, "-c", flood, lab.address(0))
    assert (lab.udp_counters(0) - before).rcvbuf_errors > 0


@needs_lab
def test_a_shaped_port_holds_its_rate_and_counts_its_drops(lab: NetworkLab) -> None:
    lab.set_rate(100, 50_000)
    flow = run_tcp_flow(lab, 0, 1, 1_000_000, 2, None)
    assert flow.median_gbit_per_s < 0.11
    assert set(lab.drops()) == {0, 1}
    lab.set_rate(0, 0)
    assert lab.drops() == {0: 0, 1: 0}


@needs_lab
def test_without_offloads_every_packet_is_mtu_sized(lab: NetworkLab) -> None:
    for offloads, enough in ((False, lambda size: size <= 1514), (True, lambda size: size > 1514)):
        lab.set_offloads(offloads)
        before = lab.link_counters(1)
        run_tcp_flow(lab, 0, 1, 5_000_000, 1, None)
        seen = lab.link_counters(1) - before
        assert enough(seen.rx_bytes / seen.rx_packets)


@needs_lab
def test_an_error_inside_leaves_nothing_behind() -> None:
    with pytest.raises(RuntimeError, match="on purpose"), NetworkLab(1) as lab:
        child = lab.popen(0, ["sleep", "60"])
        holders = [namespace.pid for namespace in lab._hosts]
        raise RuntimeError("on purpose")
    assert child.poll() is not None
    assert all(not Path(f"/proc/{pid}").exists() for pid in holders)


@needs_lab
def test_a_killed_bench_leaves_no_namespace_behind() -> None:
    code = (
        "import time\nfrom bench.netlab import NetworkLab\nlab = NetworkLab(1)\n"
        "print(lab._hosts[0].pid, flush=True)\ntime.sleep(60)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], cwd=_REPOSITORY, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    holder = Path(f"/proc/{int(process.stdout.readline())}")
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    ends = time.monotonic() + 5
    while holder.exists() and time.monotonic() < ends:
        time.sleep(0.02)
    assert not holder.exists()


# -- the peers ------------------------------------------------------------------------------------


@needs_loopback
@pytest.mark.parametrize("place", [False, True])
def test_tcp_flow_on_loopback(place: bool) -> None:
    flow = run_tcp_flow(None, 0, 0, 300_000, 3, None, place=place)
    assert len(flow.elapsed_s) == 3
    assert len(flow.cold_s) == 1
    assert flow.congestion in available_congestion()
    assert flow.cpu_s_per_gb >= 0


@needs_lab
@pytest.mark.parametrize("name", available_congestion())
def test_tcp_flow_runs_under_the_chosen_congestion_control(lab: NetworkLab, name: str) -> None:
    assert run_tcp_flow(lab, 0, 1, 100_000, 1, name).congestion == name


@needs_compiler
@needs_loopback
@pytest.mark.parametrize("framed", [True, False])
@pytest.mark.parametrize("gso", [True, False])
def test_raw_udp_on_loopback_loses_nothing(gso: bool, framed: bool) -> None:
    before = own_udp_counters()
    flow = run_raw_udp(None, 0, 0, 3_000_001, 2, gso=gso, framed=framed)
    assert len(flow.elapsed_s) == 2
    assert (own_udp_counters() - before).in_errors == 0


@needs_lab
@needs_compiler
@pytest.mark.parametrize("offloads", [True, False])
@pytest.mark.parametrize("gso", [True, False])
def test_raw_udp_in_the_lab_loses_nothing(lab: NetworkLab, offloads: bool, gso: bool) -> None:
    lab.set_offloads(offloads)
    assert run_raw_udp(lab, 0, 1, 3_000_001, 2, gso=gso).kernel_drops == 0


@needs_loopback
def test_gloo_ring_on_loopback() -> None:
    pytest.importorskip("torch")
    times = run_gloo_ring(None, [0, 0], 4096, 3, warmup=1)
    assert len(times) == 3


@needs_lab
def test_gloo_ring_in_the_lab(lab: NetworkLab) -> None:
    pytest.importorskip("torch")
    assert len(run_gloo_ring(lab, [0, 1], 4096, 3, "cubic", warmup=1)) == 3


# -- processes that go wrong ----------------------------------------------------------------------


def test_a_side_that_ends_is_reported_with_its_last_words() -> None:
    command = [sys.executable, "-c", "raise SystemExit('no disk')"]
    with Role(None, 0, command) as role, pytest.raises(PeerError, match="no disk"):
        role.hear(10)


def test_a_side_that_does_not_answer_is_given_up() -> None:
    with Role(None, 0, [sys.executable, "-c", "import time; time.sleep(60)"]) as role:
        with pytest.raises(PeerTimeoutError) as failure:
            role.hear(0.1)
        role.close(patience_s=0.0)
    assert failure.value.waited_s == 0.1


def test_a_team_that_does_not_answer_is_ended_and_says_so_later() -> None:
    """Its late answer must not be taken for the next one, nor its work go on beside others'."""
    late = "import sys, time; sys.stdin.readline(); time.sleep(0.5); print('{}', flush=True)"
    with Team("slow") as team:
        team._roles += [Role(None, 0, [sys.executable, "-c", late]) for _ in range(2)]
        processes = [role.pid for role in team._roles]
        with pytest.raises(PeerTimeoutError, match="slow: not finished in 0 s"):
            team.ask_all(team._roles, [{}, {}], 0.1)
        for pid in processes:
            with pytest.raises(ProcessLookupError):
                os.kill(pid, 0)
        with pytest.raises(PeerError, match="failed or not answered in time"):
            team.ask_all([], [], 1.0)


def test_a_wrong_role_is_an_error_not_a_hang() -> None:
    command = python_command("bench.transport.peers.tcp_flow", "juggle")
    with Role(None, 0, command) as role, pytest.raises(PeerError):
        role.hear(20)
