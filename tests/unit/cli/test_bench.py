"""`dblp bench` without a network: options, cards, figures and advice."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from dblp.cli import app
from dblp.cli.bench import parse_size, with_port
from dblp.cli.bench_cards import (
    BENCH_VERSION,
    CARD_BYTES,
    MAX_BYTES,
    REASON_CHARACTERS_MAX,
    Accepted,
    Counts,
    HostFacts,
    Outcome,
    Refused,
    Request,
    decode_card,
    encode_card,
    is_card,
)
from dblp.cli.bench_report import Spread, advice, to_dict, traffic
from dblp.cli.bench_run import Measurement, Passage, Plan
from dblp.errors import ConfigError, RemoteProtocolError
from dblp.tolerance import EXACT

WANTED = 8 << 20
HOST = HostFacts(
    version="1",
    fastpath="compiled",
    wanted_buffer=WANTED,
    receive_buffer=WANTED,
    send_buffer=WANTED,
    mtu=1500,
    gso=True,
    gro=True,
)
COUNTS = Counts(
    data_sent=1000, data_received=1000, kernel_drops=0, corrupt=0, gso_fallbacks=0, retransmitted=5
)


def measurement(**changes: object) -> Measurement:
    """Two rounds on a path where all is well, but for `changes`."""
    passage = Passage(elapsed_s=[0.5, 1.5], chunks=100, missing=0, delivered_bytes=2e9)
    fields: dict[str, object] = {
        "address": "server:7010",
        "plan": Plan(1_000_000_000, 2, EXACT),
        "here": HOST,
        "server": HOST,
        "path_mtu": 1500,
        "up": passage,
        "down": passage,
        "rtt_s": 1e-4,
        "here_counts": COUNTS,
        "server_counts": COUNTS,
    }
    return Measurement(**{**fields, **changes})  # type: ignore[arg-type]


# --- options ---


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [("20MB", 20_000_000), ("64KiB", 65_536), ("1.5 mb", 1_500_000), ("4", 4), ("1447", 1444),
     ("2gb", 2_000_000_000)],
)  # fmt: skip
def test_sizes(text: str, nbytes: int) -> None:
    assert parse_size(text) == nbytes


@pytest.mark.parametrize("text", ["", "3", "lots", "-4MB", "1TB", "5GiB", "MB", "4I"])
def test_a_wrong_size_says_what_is_right(text: str) -> None:
    with pytest.raises(ConfigError, match="choose 4B to 4GiB, such as"):
        parse_size(text)


def test_the_port_can_be_left_out() -> None:
    assert with_port("host") == "host:7010"
    assert with_port("host:1") == "host:1"
    assert with_port("[::1]") == "[::1]:7010"
    assert with_port("[::1]:1") == "[::1]:1"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["serve", "--size", "1MB"], "--size goes with dblp bench HOST:PORT"),
        (["serve", "--json"], "--json goes with dblp bench HOST:PORT"),
        (["serve", "--listen", "nowhere"], "is not HOST:PORT"),
        (["serve", "--timeout", "0"], "timeout_s is 0.0"),
        (["host", "--listen", "host:1"], "--listen goes with dblp bench serve"),
        (["host", "--rounds", "0"], "--rounds is 0"),
        (["host", "--size", "0"], "--size is '0'"),
        (["host", "--mtu", "100"], "mtu is 100"),
        (["host", "--tolerance", "150%"], "is out of range: choose at least 0, below 100%"),
        (["host:port"], "is not HOST:PORT"),
    ],
)
def test_a_mistake_is_named(arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(app, ["bench", *arguments])
    assert isinstance(result.exception, ConfigError)
    assert message in str(result.exception)


# --- cards ---


@pytest.mark.parametrize(
    "card",
    [
        Request(nbytes=MAX_BYTES, rounds=1_000_000, warmup=0, tolerance="1/" + "9" * 62),
        Accepted(HOST),
        Refused("\U0001f422" * REASON_CHARACTERS_MAX),
        Outcome(COUNTS),
    ],
)
def test_cards_have_one_size_and_come_back(card: Request | Accepted | Refused | Outcome) -> None:
    data = encode_card(card)
    assert len(data) == CARD_BYTES == 2048
    assert is_card(data)
    assert decode_card(data) == card


def test_the_head_never_changes() -> None:
    """Every version must read it; a change here breaks the message about versions."""
    data = encode_card(Refused("no"), version=0x0102)
    body = len(data.rstrip(b"\0")) - 12
    assert data[:12] == b"dblpbnch\x02\x01" + body.to_bytes(2, "little")


@pytest.mark.parametrize("version", [BENCH_VERSION - 1, BENCH_VERSION + 1])
def test_another_version_is_named(version: int) -> None:
    data = encode_card(Request(nbytes=4, rounds=1, warmup=0, tolerance="0/1"), version=version)
    with pytest.raises(ConfigError, match=f"version {version} .* install the same dblp on both"):
        decode_card(data)


def test_nonsense_is_a_named_error() -> None:
    with pytest.raises(RemoteProtocolError, match="no dblp bench"):
        decode_card(bytearray(CARD_BYTES))
    good = encode_card(Request(nbytes=4, rounds=1, warmup=0, tolerance="0/1"))
    for place in range(10, 40):
        for value in (0, 0x7F, 0xFF):
            data = bytearray(good)
            data[place] = value
            try:
                decode_card(data)
            except RemoteProtocolError:
                continue


@pytest.mark.parametrize(
    "changes", [{"nbytes": 6}, {"nbytes": 0}, {"nbytes": MAX_BYTES + 4}, {"rounds": 0}]
)
def test_a_request_out_of_bounds_is_refused(changes: dict[str, int]) -> None:
    fields = {"nbytes": 4, "rounds": 1, "warmup": 0, "tolerance": "0/1", **changes}
    with pytest.raises(RemoteProtocolError, match=next(iter(changes))):
        decode_card(encode_card(Request(**fields)))  # type: ignore[arg-type]


# --- figures ---


def test_no_p99_under_a_thousand_rounds() -> None:
    assert Spread.of([1.0, 2.0, 3.0]) == Spread(3, 1.0, 2.0, pytest.approx(2.9), None, 3.0)
    assert Spread.of([1.0] * 1000).p99 == 1.0


def test_loss_is_told_from_drops_of_the_kernel() -> None:
    seen = traffic(COUNTS, Counts(900, 940, 20, 1, 0))
    assert (seen.sent, seen.arrived, seen.lost, seen.kernel_drops) == (1000, 940, 40, 20)
    assert seen.loss_share == 0.04
    assert traffic(COUNTS, Counts(0, 995, 20, 0, 0)).lost == 0
    assert traffic(Counts(0, 0, 0, 0, 0), Counts(0, 0, 0, 0, 0)).loss_share == 0.0


def test_goodput_is_of_all_rounds() -> None:
    content = to_dict(measurement())
    assert content["up"]["goodput_bit_per_s"] == 8e9
    assert content["round_s"]["n"] == 2
    assert content["round_s"]["max"] == 3.0
    assert content["up"]["datagrams"]["retransmitted"] == 5


# --- advice ---


def test_no_advice_where_all_is_well() -> None:
    assert advice(measurement()) == []


def host(**changes: object) -> HostFacts:
    fields = {name: getattr(HOST, name) for name in HOST.__struct_fields__}
    return HostFacts(**{**fields, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"here": host(receive_buffer=212_992)}, "sudo sysctl -w net.core.rmem_max=8388608"),
        ({"server": host(send_buffer=1)}, "the server grants a socket 1 bytes (0.0 MiB) to send"),
        ({"server": host(gso=False)}, "the server has no UDP GSO"),
        ({"here": host(gro=False)}, "this host has no UDP GRO"),
        ({"here": host(fastpath="python")}, "this host runs the Python fast path"),
        ({"path_mtu": 9000}, "try --mtu 9000"),
        ({"path_mtu": 1400}, "use --mtu 1400"),
        ({"server_counts": Counts(1000, 0, 0, 0, 0)}, "datagrams to the server do not get through"),
        ({"here_counts": Counts(1000, 0, 0, 0, 0)}, "datagrams from the server do not get through"),
        ({"server_counts": Counts(1000, 900, 100, 0, 0)}, "the server's kernel dropped 100"),
        ({"server_counts": Counts(1000, 900, 0, 0, 0)}, "10.00% of the datagrams to the server"),
        ({"here_counts": Counts(1000, 1000, 0, 0, 3)}, "network driver of this host refused"),
        ({"up": Passage([0.5, 1.5], 100, 0, 2e9, fallback_rounds=2)}, "2 passages needed TCP"),
    ],
)
def test_advice(changes: dict[str, object], expected: str) -> None:
    (line,) = advice(measurement(**changes))
    assert expected in line


def test_blocked_datagrams_are_one_advice() -> None:
    dead = Counts(0, 0, 0, 0, 0)
    (line,) = advice(measurement(here_counts=dead, server_counts=dead))
    assert "no datagram gets through" in line
    assert "open UDP port 7010" in line


def test_too_large_packets_are_not_blamed_on_a_firewall() -> None:
    dead = Counts(10, 0, 0, 0, 0)
    (line,) = advice(measurement(path_mtu=1400, here_counts=dead, server_counts=dead))
    assert "use --mtu 1400" in line
