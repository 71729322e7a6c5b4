"""The serving side of `dblp bench`: takes what a client sends and sends it back."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Self

import numpy as np

from .. import FASTPATH, Impairment, Listener, Peer, Tolerance, TransportConfig, __version__
from ..errors import DBLPError, PeerLostError, RoundTimeoutError
from .bench_cards import (
    CARD_BYTES,
    REASON_CHARACTERS_MAX,
    Accepted,
    Card,
    Counts,
    HostFacts,
    Outcome,
    Refused,
    Request,
    decode_card,
    encode_card,
    is_card,
)
from .checks import BUFFER_OPTIONS, granted_buffer, udp_offload

__all__ = ["CARD_STREAM", "DATA_STREAM", "SETTLE_S", "BenchServer", "counts_between", "host_facts"]

CARD_STREAM = 0
DATA_STREAM = 1

ACCEPT_TURN_S = 0.2
"""How often a waiting server looks whether it shall end."""

REQUEST_WAIT_S = 10.0
"""Longest wait for the request of a client that has connected; others wait behind it."""

SETTLE_S = 0.1
"""After the last round, before counting: datagrams that are still under way arrive."""


def host_facts(config: TransportConfig) -> HostFacts:
    """What this host grants a socket with these settings."""
    granted = {
        name: granted_buffer(option, config.socket_buffer_bytes)
        for name, (option, _) in BUFFER_OPTIONS.items()
    }
    gso, gro = udp_offload()
    return HostFacts(
        version=__version__,
        fastpath=FASTPATH,
        wanted_buffer=config.socket_buffer_bytes,
        receive_buffer=granted["receive buffer"],
        send_buffer=granted["send buffer"],
        mtu=config.packet_bytes,
        gso=gso and config.offload,
        gro=gro and config.offload,
    )


def counts_between(
    start: Mapping[str, int], end: Mapping[str, int], *, retransmitted: int
) -> Counts:
    """What a channel counted between two `Peer.counters()`."""
    grown = {name: end[name] - start[name] for name in end}
    others = ("control_received", "credits_received", "credit_requests_received", "injected_loss",
              "foreign", "malformed", "corrupt")  # fmt: skip
    return Counts(
        data_sent=grown["datagrams_sent"],
        data_received=max(0, grown["datagrams_received"] - sum(grown[name] for name in others)),
        kernel_drops=grown["kernel_drops"],
        corrupt=grown["corrupt"],
        gso_fallbacks=grown["gso_fallbacks"],
        retransmitted=retransmitted,
    )


class BenchServer:
    """Listens from construction on; `serve` handles one client after another."""

    def __init__(
        self,
        address: str,
        *,
        config: TransportConfig,
        impairment: Impairment | None = None,
        tell: Callable[[str], None] = lambda line: None,
    ) -> None:
        """`tell` gets one line per event.  Raises ConfigError when the address cannot be used."""
        self._config = config
        self._tell = tell
        self._ending = threading.Event()
        self._listener = Listener(address, config=config, impairment=impairment)
        self.address = self._listener.address

    def serve(self, clients: int | None = None) -> None:
        """Returns after `clients` clients, good or bad (None: never), or soon after `close`."""
        number = 0
        while not self._ending.is_set() and (clients is None or number < clients):
            try:
                peer = self._listener.accept(ACCEPT_TURN_S)
            except RoundTimeoutError:
                continue
            number += 1
            name = f"client {number}"
            try:
                with peer:
                    self._serve_peer(peer, name)
            except (PeerLostError, TimeoutError) as error:
                self._tell(f"{name} left early: {error}")
            except (DBLPError, MemoryError) as error:
                self._tell(f"{name} failed: {error}")

    def _serve_peer(self, peer: Peer, name: str) -> None:
        request = self._request_of(peer)
        tolerance = Tolerance.of(request.tolerance)
        buffer = np.zeros(request.nbytes // 4, np.float32)
        self._tell(
            f"{name}: {request.rounds:,} rounds of {request.nbytes:,} bytes, tolerance {tolerance}"
        )
        _send_card(peer, Accepted(host_facts(self._config)))
        start = peer.counters()
        retransmitted = 0
        for _ in range(request.warmup + request.rounds):
            peer.recv(buffer, tolerance, stream=DATA_STREAM)
            retransmitted += peer.send(buffer, stream=DATA_STREAM).retransmitted
        time.sleep(SETTLE_S)
        counts = counts_between(start, peer.counters(), retransmitted=retransmitted)
        _send_card(peer, Outcome(counts))
        self._tell(f"{name}: done")

    def _request_of(self, peer: Peer) -> Request:
        """The client's request; a client that cannot be served is told why."""
        data = bytearray(CARD_BYTES)
        try:
            peer.recv_async(data, stream=CARD_STREAM).result(REQUEST_WAIT_S)
        except TimeoutError as error:
            raise PeerLostError(f"it asked for nothing within {REQUEST_WAIT_S:g} s") from error
        try:
            request = decode_card(data)
            if not isinstance(request, Request):
                raise PeerLostError("it did not begin with a request")
            Tolerance.of(request.tolerance)
        except DBLPError as error:
            if is_card(data):  # of another version, perhaps: the head of the answer tells it which
                _send_card(peer, Refused(str(error)[:REASON_CHARACTERS_MAX]))
            raise
        return request

    def close(self) -> None:
        """Ends `serve` and stops listening; from any thread, idempotent."""
        self._ending.set()
        self._listener.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _send_card(peer: Peer, card: Card) -> None:
    peer.send(encode_card(card), stream=CARD_STREAM)
