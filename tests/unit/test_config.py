"""The transport's settings: defaults that run untuned, and errors that name the setting."""

from __future__ import annotations

from dataclasses import FrozenInstanceError

import pytest

from dblp.config import TransportConfig
from dblp.errors import ConfigError


def test_defaults() -> None:
    config = TransportConfig()
    assert (config.mtu, config.packet_bytes) == (None, 1500)
    assert (config.timeout_s, config.connect_timeout_s) == (30.0, 30.0)
    assert config.socket_buffer_bytes == 4 * 1024 * 1024
    assert (config.order, config.stop, config.loop, config.control) == (
        "auto",
        "eager",
        "auto",
        "datagram",
    )
    assert config.offload and config.probe_quiet_s is None


def test_it_is_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        TransportConfig().mtu = 9000  # type: ignore[misc]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("mtu", value) for value in (0, 1279, 65536, 1500.0, True, "1500")),
        *(("socket_buffer_bytes", value) for value in (0, 65535, 2**31, 1e6)),
        *(("seed", value) for value in (-1, 2**64, None)),
        *(("timeout_s", value) for value in (0, -1, float("nan"), float("inf"), "30", True)),
        ("connect_timeout_s", 0),
        *(("heartbeat_s", value) for value in (0, float("inf"))),
        *(("probe_quiet_s", value) for value in (-0.001, float("nan"), "0")),
        ("order", "reverse"),
        ("stop", "lazy"),
        ("loop", "trio"),
        ("control", "udp"),
        *(("offload", value) for value in (None, 1)),
    ],
)
def test_a_bad_value_is_named(name: str, value: object) -> None:
    with pytest.raises(ConfigError, match=name):
        TransportConfig(**{name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("mtu", value) for value in (1280, 9000, 65535)),
        *(("probe_quiet_s", value) for value in (0, 0.0, 0.001)),
        ("timeout_s", 1),
        ("control", "tcp"),
        ("offload", False),
    ],
)
def test_a_good_value_is_kept(name: str, value: object) -> None:
    assert getattr(TransportConfig(**{name: value}), name) == value


@pytest.mark.parametrize(("timeout_s", "silence_s"), [(1, 5.0), (15, 5.0), (30, 10.0), (90, 30.0)])
def test_peer_silence_follows_the_timeout(timeout_s: float, silence_s: float) -> None:
    assert TransportConfig(timeout_s=timeout_s).peer_silence_s == silence_s


def test_a_heartbeat_slower_than_the_silence_is_refused() -> None:
    with pytest.raises(ConfigError, match="heartbeat_s"):
        TransportConfig(timeout_s=6, heartbeat_s=5)


@pytest.mark.parametrize(
    ("exact", "dtype", "order"),
    [
        (True, "float32", "sequential"),
        (True, "uint8", "sequential"),
        (False, "float32", "magnitude"),
        (False, "bfloat16", "magnitude"),
        (False, "int32", "rotate"),
    ],
)
def test_auto_order(exact: bool, dtype: str, order: str) -> None:
    assert TransportConfig().order_for(exact=exact, dtype=dtype) == order


def test_a_chosen_order_is_never_replaced() -> None:
    config = TransportConfig(order="random")
    assert config.order_for(exact=True, dtype="float32") == "random"


def test_stragglers_are_waited_for_at_least_as_long_as_rounds() -> None:
    plain = TransportConfig(timeout_s=5.0)
    assert (plain.announce_timeout_s, plain.longest_round_s) == (5.0, 5.0)
    patient = TransportConfig(timeout_s=5.0, straggler_timeout_s=60.0)
    assert (patient.announce_timeout_s, patient.longest_round_s) == (60.0, 65.0)
    with pytest.raises(ConfigError, match="straggler_timeout_s"):
        TransportConfig(timeout_s=5.0, straggler_timeout_s=4.0)
