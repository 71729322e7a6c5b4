from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from dblp.cli import app, checks

runner = CliRunner()


def doctor(*arguments: str) -> tuple[int, dict[str, Any]]:
    result = runner.invoke(app, ["doctor", "--json", *arguments])
    return result.exit_code, json.loads(result.output)


def test_json_lists_every_check() -> None:
    status, content = doctor()
    assert status == 0
    assert content["ok"] is True
    names = {check["name"] for check in content["checks"]}
    assert {
        "fast path",
        "CRC32C",
        "event loop",
        "UDP loopback",
        "TCP loopback",
        "receive buffer",
        "send buffer",
        "UDP GSO",
        "UDP GRO",
    } <= names
    for check in content["checks"]:
        assert set(check) == {"name", "status", "found", "wanted", "advice"}
        assert check["status"] in ("ok", "warning", "error")
        assert bool(check["advice"]) == (check["status"] != "ok")


def test_a_small_buffer_comes_with_the_sysctl(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "granted_buffer", lambda option, wanted: 212992)
    receive, send = checks.check_buffers(8 << 20)
    assert receive.status == "warning"
    assert "sudo sysctl -w net.core.rmem_max=8388608" in receive.advice
    assert "sudo sysctl -w net.core.wmem_max=8388608" in send.advice
    assert receive.found == "212,992 bytes (0.2 MiB)"


def test_a_granted_buffer_is_read_back() -> None:
    assert checks.granted_buffer(socket.SO_RCVBUF, 65536) == 65536


def test_broken_loopback_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> socket.socket:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(checks.socket, "socket", broken)
    status, content = doctor()
    assert status == 1
    assert content["ok"] is False
    failed = {check["name"] for check in content["checks"] if check["status"] == "error"}
    assert "UDP loopback" in failed
    assert runner.invoke(app, ["doctor"]).exit_code == 1


def test_the_python_fast_path_is_a_warning_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "FASTPATH", "python")
    monkeypatch.setattr(checks.fastpath, "crc32c_backend", lambda: "python")
    status, content = doctor()
    assert status == 0
    by_name = {check["name"]: check for check in content["checks"]}
    assert by_name["fast path"]["status"] == "warning"
    assert by_name["CRC32C"]["status"] == "warning"


def test_a_small_mtu_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, state, mtu in (
        ("eth0", "up", "1400"),
        ("lo", "unknown", "65536"),
        ("x", "down", "9"),
    ):
        interface = tmp_path / name
        interface.mkdir()
        (interface / "operstate").write_text(state + "\n")
        (interface / "mtu").write_text(mtu + "\n")
    mtus = checks.interface_mtus(tmp_path)
    assert mtus == {"eth0": 1400, "lo": 65536}
    assert checks.interface_mtus(tmp_path / "nowhere") == {}
    monkeypatch.setattr(checks, "interface_mtus", lambda: mtus)
    eth0, lo = checks.check_mtu(1500)
    assert eth0.status == "warning" and "TransportConfig(mtu=1400)" in eth0.advice
    assert lo.status == "ok"


def test_the_table_is_readable() -> None:
    result = runner.invoke(app, ["doctor"])
    assert result.exit_code == 0
    assert "UDP loopback" in result.output
