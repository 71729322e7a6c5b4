"""Point-to-point: DBLP_SEND and DBLP_RECV (Algorithms 1 and 2), to build one's own topology."""

from __future__ import annotations

import contextlib
import logging
import sys
from concurrent.futures import Future
from fractions import Fraction
from typing import Any, cast

from .. import wire
from ..buffers import byte_view_of
from ..config import TransportConfig
from ..errors import LocalProtocolError
from ..faults import Impairment
from ..io.control import parse_address
from ..io.handshake import Connection, connect
from ..io.loop import LoopThread
from ..stats import RoundReport
from ..tolerance import EXACT, Tolerance
from .endpoint import CLOSE_TIMEOUT_S, Endpoint, EndpointGroup, close_thread, wait_for
from .point_to_point_core import FinishedTransfer, PointToPointCore
from .worker import CALL_MARGIN_S

__all__ = ["Peer", "make_endpoint"]

log = logging.getLogger("dblp")


class Peer:
    """A connection over which buffers are sent and received with bounded loss.

    ```python
    with dblp.Peer.connect("10.0.0.1:5000") as peer:
        peer.send(gradient)                      # the receiver says how much may be missing
        report = peer.recv(mean, tolerance="0.8%")
    ```

    The n-th send of a stream on one side meets the n-th recv of that stream on the other.
    """

    def __init__(
        self,
        thread: LoopThread,
        group: EndpointGroup,
        endpoint: Endpoint,
        *,
        listener: object | None = None,
    ) -> None:
        """Use `Peer.connect` or `Listener.accept`; the listener lives as long as its peers."""
        self._thread = thread
        self._group = group
        self._endpoint = endpoint
        self._listener = listener
        self._closed = False

    @classmethod
    def connect(
        cls,
        address: str | tuple[str, int],
        *,
        config: TransportConfig | None = None,
        impairment: Impairment | None = None,
    ) -> Peer:
        """Connects to a `Listener`; errors as for `Worker`."""
        settings = config if config is not None else TransportConfig()
        host, port = parse_address(address)
        thread = LoopThread(settings.loop, "dblp-peer")

        async def start() -> tuple[EndpointGroup, Endpoint]:
            connection = await connect(
                host,
                port,
                rank=wire.NO_RANK,
                world=1,
                config=settings,
                fingerprint="",
                impairment=impairment,
            )
            group = EndpointGroup(thread, settings)
            return group, make_endpoint(group, "the listener", connection, settings)

        try:
            group, endpoint = thread.call(start(), settings.connect_timeout_s + CALL_MARGIN_S)
        except BaseException:
            thread.close()
            raise
        return cls(thread, group, endpoint)

    @property
    def _core(self) -> PointToPointCore:
        return cast(PointToPointCore, self._endpoint.core)

    def send(self, buffer: Any, *, stream: int = 0) -> RoundReport:
        """DBLP_SEND: returns when the receiver has what it wants; the report says what is missing.

        Args:
            buffer: contiguous numpy array, CPU tensor or buffer of any dtype; left unchanged.
            stream: 0 … 65535; streams are independent of each other.

        Raises:
            RemoteProtocolError: the receiver's buffer has another size or dtype.
            PeerLostError, RoundTimeoutError: the peer is gone, or did not call recv in time.
        """
        return cast(
            RoundReport, wait_for(self._thread, self.send_async(buffer, stream=stream), "send")
        )

    def send_async(self, buffer: Any, *, stream: int = 0) -> Future[RoundReport]:
        """Like `send`, at once; `buffer` must not change until the future is done."""
        view, dtype = byte_view_of(buffer, what="buffer", writable=False, numeric=False)
        return self._endpoint.submit(
            lambda now: self._core.send(view, dtype, stream=stream, now=now)
        )

    def recv(
        self,
        buffer: Any,
        tolerance: Tolerance | Fraction | str | int = EXACT,
        *,
        stream: int = 0,
    ) -> RoundReport:
        """DBLP_RECV: fills `buffer`; at most the share `tolerance` of its chunks stays zero.

        Args:
            buffer: writable and contiguous, of the sender's size and dtype.
            tolerance: share of the chunks that may be missing, such as "0.8%"; exact.
            stream: 0 … 65535.

        Raises:
            LocalProtocolError: the sender's buffer has another size or dtype.
            PeerLostError, RoundTimeoutError: the peer is gone, or did not call send in time.
        """
        return cast(
            RoundReport,
            wait_for(self._thread, self.recv_async(buffer, tolerance, stream=stream), "recv"),
        )

    def recv_async(
        self,
        buffer: Any,
        tolerance: Tolerance | Fraction | str | int = EXACT,
        *,
        stream: int = 0,
    ) -> Future[RoundReport]:
        """Like `recv`, at once; `buffer` belongs to the transport until the future is done."""
        view, dtype = byte_view_of(buffer, what="buffer", writable=True, numeric=False)
        exact = Tolerance.of(tolerance)
        return self._endpoint.submit(
            lambda now: self._core.recv(view, exact, dtype, stream=stream, now=now)
        )

    def counters(self) -> dict[str, int]:
        """The channel's counters since the start, by name (`dblp.fastpath.COUNTERS`)."""
        return self._endpoint.link.channel.counters()

    @property
    def rtt_s(self) -> float | None:
        """Smoothed round-trip time in seconds; None until it was measured."""
        return self._endpoint.link.session.rtt_s

    def close(self) -> None:
        """Says goodbye; idempotent."""
        if self._closed:
            return
        self._closed = True
        if self._listener is None:
            close_thread(self._thread, self._group)
            return
        if self._thread.on_loop_thread:
            self._endpoint.close()
            return
        # LocalProtocolError: the listener was closed first, and with it all its peers.
        with contextlib.suppress(LocalProtocolError):
            self._thread.call(self._group.close_endpoint(self._endpoint), CLOSE_TIMEOUT_S)

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_closed") and not sys.is_finalizing():
            self.close()


def make_endpoint(
    group: EndpointGroup, name: str, connection: Connection, config: TransportConfig
) -> Endpoint:
    """The point-to-point endpoint on a completed handshake."""
    return Endpoint(
        group,
        name,
        connection,
        config,
        lambda session: PointToPointCore(session=session, config=config, peer=name),
        _report_of,
    )


def _report_of(finished: FinishedTransfer, elapsed_s: float) -> RoundReport:
    assert finished.report is not None
    return finished.report
