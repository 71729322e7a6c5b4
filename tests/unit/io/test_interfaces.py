"""Which addresses are told to others."""

from __future__ import annotations

import socket

import pytest

from dblp.errors import ConfigError
from dblp.io import interfaces as module
from dblp.io.interfaces import (
    Interface,
    advertised_addresses,
    choose_interfaces,
    common_family,
    host_key,
    interfaces,
    route_to,
)

FOUND = [
    Interface("lo", "127.0.0.1"),
    Interface("docker0", "172.17.0.1"),
    Interface("eth0", "10.0.0.5"),
    Interface("eth1", "192.168.7.5"),
    Interface("ib0", "fd00::5"),
    Interface("lo", "::1"),
]


def test_the_kernel_is_asked() -> None:
    found = interfaces()
    assert Interface("lo", "127.0.0.1") in found
    assert len(set(found)) == len(found)
    known = {name for _, name in socket.if_nameindex()}
    assert {item.name for item in found} <= known


def test_field_01_no_loopback_and_no_host_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even where the host's own name, or MASTER_ADDR, leads to 127.0.1.1."""

    def forbidden(*_: object) -> str:
        raise AssertionError("a host name says nothing about addresses")

    monkeypatch.setattr(socket, "gethostname", forbidden)
    monkeypatch.setattr(socket, "getfqdn", forbidden)
    monkeypatch.setattr(module, "route_to", lambda host: "127.0.1.1")
    assert advertised_addresses("me", "", FOUND)[:2] == ["10.0.0.5", "192.168.7.5"]
    assert "127.0.0.1" not in advertised_addresses("me", "", FOUND)


def test_field_01_loopback_is_better_than_nothing() -> None:
    assert advertised_addresses(None, "", FOUND[:1]) == ["127.0.0.1"]
    with pytest.raises(ConfigError, match="no network address"):
        advertised_addresses(None, "", [])


def test_field_02_the_route_to_the_master_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "route_to", lambda host: "192.168.7.5")
    assert advertised_addresses("master", "", FOUND)[0] == "192.168.7.5"


def test_field_02_an_interface_can_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "route_to", lambda host: "10.0.0.5")
    monkeypatch.setenv("DBLP_SOCKET_IFNAME", "eth1")
    assert advertised_addresses("master", None, FOUND) == ["192.168.7.5"]
    assert advertised_addresses("master", "=eth0,docker", FOUND) == ["10.0.0.5", "172.17.0.1"]
    assert advertised_addresses("master", "^lo,docker,eth", FOUND) == ["fd00::5"]
    assert choose_interfaces("eth", FOUND) == FOUND[2:4]


def test_field_02_the_error_lists_the_interfaces() -> None:
    with pytest.raises(ConfigError, match=r"'bond0'.*eth0 \(10\.0\.0\.5\), eth1"):
        choose_interfaces("bond0", FOUND)
    with pytest.raises(ConfigError, match="none, as no interface is up"):
        choose_interfaces("=eth", [])


def test_field_03_all_ranks_use_one_family(monkeypatch: pytest.MonkeyPatch) -> None:
    """The name of rank 0's host may lead to IPv4 there and to IPv6 from elsewhere."""
    monkeypatch.setattr(module, "route_to", lambda host: "fd00::5")
    other = advertised_addresses("master", "", FOUND)
    assert other == ["fd00::5", "10.0.0.5", "192.168.7.5", "172.17.0.1"]
    assert common_family([["10.0.0.1"], other]) == [["10.0.0.1"], other[1:]]
    assert common_family([other, other]) == [["fd00::5"], ["fd00::5"]]
    assert common_family([other, ["10.0.0.1"]]) == [other[1:], ["10.0.0.1"]]
    with pytest.raises(ConfigError, match=r"rank 0 has the address 10\.0\.0\.1 and rank 2 fd00::5"):
        common_family([["10.0.0.1"], other, ["fd00::5"]])


def test_routes() -> None:
    assert route_to("127.0.0.1") == "127.0.0.1"
    assert route_to("no-such-host.invalid") is None


def test_the_key_of_a_host_stays() -> None:
    assert host_key() == host_key()
