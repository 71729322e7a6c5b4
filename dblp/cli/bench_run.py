"""The measuring side of `dblp bench`: rounds that go up to a server and come back."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from .. import Impairment, Peer, RoundReport, Tolerance, TransportConfig
from ..errors import (
    ConfigError,
    DBLPError,
    PeerLostError,
    ProtocolError,
    RoundAbortedError,
    RoundTimeoutError,
)
from ..io.control import parse_address
from ..io.interfaces import path_mtu
from .bench_cards import (
    CARD_BYTES,
    Accepted,
    Card,
    Counts,
    HostFacts,
    Outcome,
    Refused,
    Request,
    decode_card,
    encode_card,
)
from .bench_server import CARD_STREAM, DATA_STREAM, SETTLE_S, counts_between, host_facts

__all__ = ["WARMUP_ROUNDS", "Measurement", "Passage", "Plan", "run_bench"]

WARMUP_ROUNDS = 2
"""Not reported: memory is touched for the first time, and congestion control finds its window."""

TILE_ELEMENTS = 1 << 20


@dataclass(frozen=True, slots=True)
class Plan:
    """What to measure."""

    nbytes: int
    """Size of the float32 buffer of a round, a multiple of 4."""
    rounds: int
    """Reported rounds; `WARMUP_ROUNDS` come before them."""
    tolerance: Tolerance


@dataclass(slots=True)
class Passage:
    """One direction of all reported rounds."""

    elapsed_s: list[float] = field(default_factory=list)
    chunks: int = 0
    missing: int = 0
    delivered_bytes: float = 0.0
    fallback_rounds: int = 0
    """Rounds of which a part went over TCP, as datagrams did not get through."""

    def add(self, elapsed_s: float, report: RoundReport) -> None:
        """One more round."""
        self.elapsed_s.append(elapsed_s)
        self.chunks += report.chunks
        self.missing += report.missing
        self.delivered_bytes += report.nbytes * report.delivered_share
        self.fallback_rounds += report.fallback

    @property
    def goodput_bit_per_s(self) -> float:
        """Delivered bits of all rounds over their time."""
        return 8 * self.delivered_bytes / sum(self.elapsed_s)


@dataclass(slots=True)
class Measurement:
    """What was found.  The counts are of all rounds, warm-up included."""

    address: str
    plan: Plan
    here: HostFacts
    server: HostFacts
    path_mtu: int | None
    """Largest packet that the path takes, in bytes, as far as this kernel knows."""
    up: Passage = field(default_factory=Passage)
    down: Passage = field(default_factory=Passage)
    rtt_s: float | None = None
    here_counts: Counts | None = None
    server_counts: Counts | None = None


def run_bench(
    address: str,
    plan: Plan,
    config: TransportConfig,
    *,
    on_round: Callable[[float, float], None] = lambda up_s, down_s: None,
    impairment: Impairment | None = None,
) -> Measurement:
    """Measures against the server at `address`; `on_round` gets the seconds up and down of each
    reported round.

    Raises ConfigError, PeerLostError, RoundTimeoutError or RemoteProtocolError, each with one
    sentence for the user.  Every wait is bounded by `config`.
    """
    with Peer.connect(address, config=config, impairment=impairment) as peer:
        with _explained(address, config, begun=False):
            server = _agree(peer, plan)
        path = path_mtu(*parse_address(address))
        found = Measurement(address, plan, host_facts(config), server, path)
        with _explained(address, config, begun=True):
            _run_rounds(peer, found, on_round)
    return found


def _agree(peer: Peer, plan: Plan) -> HostFacts:
    """Asks for the rounds; returns what the server's host grants."""
    request = Request(
        nbytes=plan.nbytes,
        rounds=plan.rounds,
        warmup=WARMUP_ROUNDS,
        tolerance=plan.tolerance.wire(),
    )
    peer.send(encode_card(request), stream=CARD_STREAM)
    answer = _next_card(peer)
    if isinstance(answer, Refused):
        raise ConfigError(f"the bench server refuses: {answer.reason}")
    if not isinstance(answer, Accepted):
        raise ConfigError("the bench server did not answer the request: restart it")
    return answer.host


def _next_card(peer: Peer) -> Card:
    data = bytearray(CARD_BYTES)
    peer.recv(data, stream=CARD_STREAM)
    return decode_card(data)


def _run_rounds(peer: Peer, found: Measurement, on_round: Callable[[float, float], None]) -> None:
    plan = found.plan
    gradient = np.resize(_tile(), plan.nbytes // 4)
    echo = np.zeros_like(gradient)
    start = peer.counters()
    retransmitted = 0
    rounds = plan.rounds + WARMUP_ROUNDS
    for index in range(rounds):
        if index == rounds - 1:
            echo.fill(0)  # so that what is compared in the end has come in this round
        started = time.perf_counter()
        sent = peer.send(gradient, stream=DATA_STREAM)
        halfway = time.perf_counter()
        received = peer.recv(echo, plan.tolerance, stream=DATA_STREAM)
        ended = time.perf_counter()
        retransmitted += sent.retransmitted
        if index in (0, rounds - 1):
            _check(gradient, echo, sent.missing + received.missing)
        if index >= WARMUP_ROUNDS:
            found.up.add(halfway - started, sent)
            found.down.add(ended - halfway, received)
            on_round(halfway - started, ended - halfway)
    time.sleep(SETTLE_S)
    found.rtt_s = peer.rtt_s
    found.here_counts = counts_between(start, peer.counters(), retransmitted=retransmitted)
    outcome = _next_card(peer)
    if not isinstance(outcome, Outcome):
        raise ConfigError("the bench server did not tell what it counted: restart it")
    found.server_counts = outcome.counts


def _tile() -> npt.NDArray[np.float32]:
    return np.random.default_rng(7).standard_normal(TILE_ELEMENTS, dtype=np.float32)


def _check(gradient: npt.NDArray[np.float32], echo: npt.NDArray[np.float32], missing: int) -> None:
    """What came back is what was sent, or zero where chunks are missing."""
    equal = echo == gradient
    if not (equal.all() if missing == 0 else (equal | (echo == 0)).all()):
        raise DBLPError("what came back is not what was sent: please report this as a bug of dblp")


@contextlib.contextmanager
def _explained(address: str, config: TransportConfig, *, begun: bool) -> Iterator[None]:
    """Errors of the transport in terms of the bench."""
    try:
        yield
    except RoundTimeoutError as error:
        if begun:
            advice = "choose a smaller --size or a longer --timeout"
        else:
            advice = (
                "it may be busy with another client, or be no bench server: try again later, or "
                "run dblp bench serve there"
            )
        raise RoundTimeoutError(
            f"the bench server at {address} has not answered within {config.timeout_s:g} s: "
            f"{advice}"
        ) from error
    except (PeerLostError, RoundAbortedError) as error:
        raise PeerLostError(
            f"the bench server at {address} has gone away ({error}): look at what it says"
        ) from error
    except ProtocolError as error:
        raise PeerLostError(
            f"what listens at {address} is no bench server of this version ({error}): run dblp "
            "bench serve there"
        ) from error
