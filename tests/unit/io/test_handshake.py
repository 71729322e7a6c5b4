"""The frames of the handshake, one by one."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from dblp import errors as errors_module
from dblp.errors import DBLPError, PeerLostError, RemoteProtocolError, RoundAbortedError
from dblp.io.control import ControlConnection
from dblp.io.handshake import FrameQueue, error_from
from dblp.wire import Abort, Heartbeat, Ready, Welcome


@pytest.mark.parametrize(
    "name",
    ["ConfigError", "LocalProtocolError", "PeerLostError", "RemoteProtocolError",
     "RoundAbortedError", "RoundTimeoutError"],
)  # fmt: skip
def test_an_abort_becomes_the_error_it_names(name: str) -> None:
    error = error_from(Abort(name, "because"))
    assert type(error) is getattr(errors_module, name)
    assert str(error) == "because"


@pytest.mark.parametrize("name", ["KeyboardInterrupt", "OSError", "", "DBLPError"])
def test_an_abort_of_a_kind_that_is_not_ours(name: str) -> None:
    assert type(error_from(Abort(name, "because"))) is RoundAbortedError


@dataclass
class Listener:
    seen: list[Any] = field(default_factory=list)


async def test_frames_are_awaited_one_by_one() -> None:
    control = ControlConnection()
    frames = FrameQueue(control)
    control.on_frame(Ready(0, 1))
    control.on_frame(Heartbeat())
    assert await frames.next(Ready) == Ready(0, 1)
    with pytest.raises(RemoteProtocolError, match="Heartbeat frame came where Welcome"):
        await frames.next(Welcome)


async def test_an_abort_and_a_loss_are_raised() -> None:
    control = ControlConnection()
    frames = FrameQueue(control)
    control.on_frame(Abort("RemoteProtocolError", "rank 0 is taken"))
    control.on_lost(PeerLostError("gone"))
    with pytest.raises(RemoteProtocolError, match="taken"):
        await frames.next(Welcome)
    with pytest.raises(PeerLostError, match="gone"):
        await frames.next(Welcome)


async def test_what_came_too_early_goes_to_the_next_who_listens() -> None:
    control = ControlConnection()
    frames = FrameQueue(control)
    control.on_frame(Ready(0, 1))
    frames.release()
    control.on_frame(Ready(0, 2))
    seen: list[Any] = []
    control.listen(seen.append)
    assert seen == [Ready(0, 1), Ready(0, 2)]


async def test_a_loss_that_came_too_early_is_raised_by_release() -> None:
    control = ControlConnection()
    frames = FrameQueue(control)
    control.on_frame(Ready(0, 1))
    control.on_lost(PeerLostError("gone"))
    with pytest.raises(DBLPError, match="gone"):
        frames.release()
