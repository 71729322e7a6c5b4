"""One turn of one session: the order that the socket driver and the simulator share.

Inputs (control datagrams, what the channel accepted) → timers → control out → events.  Transmitting
is the pump's business, before and after.
"""

from __future__ import annotations

from collections.abc import Callable

from ..errors import RemoteProtocolError
from ..fastpath import Channel
from ..wire import AnyFrame, Frame, decode_frame, encode_frame
from .events import Path
from .session import Session

__all__ = ["feed", "flush"]


def feed(
    session: Session,
    channel: Channel,
    *,
    now: float,
    give: Callable[[AnyFrame], None],
    put_reliable: Callable[[Frame], None],
    on_events: Callable[[float], object],
) -> None:
    """Tells `session` what its channel has for it, and acts on the timers that are due.

    Args:
        session: towards one peer.
        channel: the session's channel.
        now: seconds.
        give: hands one arrived control frame to the session (`Session.on_frame`).
        put_reliable: puts one frame on the reliable channel.
        on_events: the owner of the session takes its events; called once with `now`.
    """
    channel.take_events()
    for payload in channel.take_control():
        try:
            frame = decode_frame(payload)
        except RemoteProtocolError:
            continue  # datagram trouble is counted, never raised
        give(frame)
    session.on_progress(now=now)
    due = session.next_timeout()
    if due is not None and due <= now:
        session.on_timeout(now=now)
    flush(session, channel, put_reliable)  # signals leave before anything expensive happens
    on_events(now)


def flush(session: Session, channel: Channel, put_reliable: Callable[[Frame], None]) -> None:
    """Sends the control frames of `session`, each by the way that it asks for."""
    for frame, path in session.take_frames():
        if path is not Path.RELIABLE:
            stream, round_id = getattr(frame, "stream", 0), getattr(frame, "round", 0)
            channel.send_control(encode_frame(frame), stream, round_id)
        if path is not Path.DATAGRAM:
            put_reliable(frame)
