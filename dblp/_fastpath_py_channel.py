"""The readable channel: both directions to one peer, and the ways in and out of it."""

from __future__ import annotations

from collections.abc import Sequence

from ._fastpath_py_bytes import Buffer
from ._fastpath_py_inbound import ReceivingChannel
from ._fastpath_py_outbound import SendingChannel
from ._fastpath_py_socket import MAX_SEGMENTS, Datagram
from ._fastpath_py_state import check_round
from .wire import KIND_CONTROL

_BATCHES_PER_TURN = 4
"""GSO batches between two looks at what has arrived: 256 KiB."""


class Channel(ReceivingChannel, SendingChannel):
    """One direction-pair to one peer over one connected UDP socket: transmit queue, receive table,
    credit.

    fd = -1: no socket; use collect()/ingest() (simulator, impaired path).  Sequences are 64 bit
    inside, 16 bit on the wire; the first datagram sent has sequence 1.  Sequence numbers are used
    by DATA datagrams only (others carry the newest DATA sequence).
    """

    # --- control frames as datagrams ---

    def send_control(self, payload: Buffer, stream: int = 0, round: int = 0) -> bool:
        """Sends at once (fd) or appends for collect().  False if the kernel refused.  ValueError if
        longer than chunk_bytes."""
        if memoryview(payload).nbytes > self.chunk_bytes:
            raise ValueError(f"a control datagram holds at most {self.chunk_bytes} bytes")
        check_round(stream, round)
        datagram = self._pack(KIND_CONTROL, 0, stream, round, 0, payload)
        if self._socket is None:
            self._control_out.append(datagram)
        elif not self._send_alone(datagram):
            return False
        self._counters["control_sent"] += 1
        return True

    def take_control(self) -> list[bytes]:
        """Payloads of the control datagrams received since the last call."""
        taken, self._control_in = self._control_in, []
        return taken

    # --- faults ---

    def set_loss(self, ppm: int, first_round: int, last_round: int, seed: int) -> None:
        """Drops arriving datagrams (all kinds) with probability ppm/1e6 while the newest round this
        channel has opened for receiving or transmitting lies in first_round … last_round; DATA by
        its own round.  0 switches it off.  Counted as injected_loss."""
        self._loss.set(ppm, first_round, last_round, seed)

    # --- bytes in, bytes out ---

    def ingest(self, datagrams: Sequence[bytes], now_ns: int) -> None:
        """Handles arrived datagrams exactly as pump() does."""
        for datagram in datagrams:
            self._handle(bytes(datagram), now_ns)
        self._socket_ran_empty()
        if self._socket is not None:
            self.send_due_credit(now_ns)

    def collect(self, max_datagrams: int, now_ns: int, took_ns: int = 0) -> list[bytes]:
        """What pump() would send now: control, credits and credit requests, then at most
        `max_datagrams` of data within credit, cwnd and pacing, which leave one after the other
        within `took_ns`."""
        collected, self._control_out = self._control_out, []
        if self._credit_due:
            collected.append(self._take_credit(now_ns))
        if self._request_due(now_ns):
            collected.append(self._take_request(now_ns))

        def keep(datagrams: list[Datagram]) -> int:
            collected.extend(header + bytes(payload) for header, payload in datagrams)
            return len(datagrams)

        self._transmit(max_datagrams, now_ns, keep, took_ns)
        return collected

    def receive_raw(self, max_calls: int = 8) -> list[bytes]:
        """Reads the socket to EAGAIN (bounded) and returns the datagrams without handling them (GRO
        split undone)."""
        received: list[bytes] = []
        for _ in range(max_calls):
            arrived = self._the_socket().receive()
            if arrived is None:
                break
            received += arrived.datagrams
        return received

    def send_pending(self, now_ns: int) -> int:
        """One transmit turn on the socket (impaired path); returns datagrams of data sent.  Unlike
        in the compiled one it counts as taking no time: Python takes longer than the kernel."""
        kernel = self._the_socket()
        if self._request_due(now_ns):
            self._send_alone(self._take_request(now_ns))

        def send(datagrams: list[Datagram]) -> int:
            taken = kernel.send(datagrams)
            self._socket_full = taken < len(datagrams)
            return taken

        self._socket_full = False
        return self._transmit(_BATCHES_PER_TURN * MAX_SEGMENTS, now_ns, send)

    def _send_alone(self, datagram: bytes) -> bool:
        return self._the_socket().send([(datagram, memoryview(b""))]) == 1

    # --- for the pump ---

    def receive_pending(self, max_calls: int, now_ns: int, wall_ahead_ns: int) -> bool:
        """One receive turn on the socket; whether anything arrived.  The kernel stamps arrivals
        with the wall clock, which is `wall_ahead_ns` ahead of `now_ns`."""
        happened = False
        for _ in range(max_calls):
            arrived = self._the_socket().receive()
            if arrived is None:
                self._socket_ran_empty()
                break
            arrival_ns = now_ns
            if arrived.wall_ns is not None:
                arrival_ns = min(now_ns, arrived.wall_ns - wall_ahead_ns)
            for datagram in arrived.datagrams:
                self._handle(datagram, arrival_ns)
            happened |= bool(arrived.datagrams)
            self.send_due_credit(now_ns)
        self.send_due_credit(now_ns)
        return happened

    def send_due_credit(self, now_ns: int) -> None:
        """A credit that the kernel refuses is as good as lost: the peer asks for another."""
        if self._credit_due:
            self._send_alone(self._take_credit(now_ns))

    @property
    def wants_writable(self) -> bool:
        """The last send turn ended at a full socket."""
        return self._socket_full

    # --- events ---

    def reached(self) -> bool:
        """Something for Python is waiting (as EVENT of pump()); cleared by take_events()."""
        return self._event

    def take_events(self) -> None:
        """Python has seen what was waiting."""
        self._event = False

    def counters(self) -> dict[str, int]:
        """All counters by name (COUNTERS)."""
        return dict(self._counters)
