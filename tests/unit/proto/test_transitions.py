"""The transition tables: every (state, input) pair acts, is harmless, or is our own bug."""

import itertools
from collections.abc import Callable
from types import ModuleType

import numpy as np
import pytest

from dblp.errors import RoundAbortedError
from dblp.proto import Receiver, ReceiverState, Sender, SenderState
from dblp.proto.machine import Machine
from dblp.proto.states import (
    RECEIVER_HARMLESS,
    RECEIVER_TRANSITIONS,
    SENDER_HARMLESS,
    SENDER_TRANSITIONS,
    ReceiverInput,
    SenderInput,
)
from dblp.tolerance import EXACT
from dblp.wire import Bitmap, Open, Probe, Stop

from .pair import CHUNK_BYTES, Pair, numbers

CHUNKS = 4
DATA = numbers(CHUNKS * CHUNK_BYTES)
SENDER_PAIRS = list(itertools.product(SenderState, SenderInput))
RECEIVER_PAIRS = list(itertools.product(ReceiverState, ReceiverInput))
OVER = RoundAbortedError("over")


def check_pair(state: object, input_: object, transitions: dict, harmless: frozenset) -> None:
    machine: Machine = Machine(state, transitions, harmless)  # type: ignore[type-var]
    pair = (state, input_)
    assert not (pair in transitions and pair in harmless)
    if pair in transitions:
        assert machine.step(input_) and machine.state is transitions[pair]
    elif pair in harmless:
        assert not machine.step(input_) and machine.state is state
    else:
        with pytest.raises(AssertionError, match="cannot happen"):
            machine.step(input_)
        assert machine.state is state


@pytest.mark.parametrize(("state", "input_"), SENDER_PAIRS)
def test_every_sender_pair(state: SenderState, input_: SenderInput) -> None:
    check_pair(state, input_, SENDER_TRANSITIONS, SENDER_HARMLESS)


@pytest.mark.parametrize(("state", "input_"), RECEIVER_PAIRS)
def test_every_receiver_pair(state: ReceiverState, input_: ReceiverInput) -> None:
    check_pair(state, input_, RECEIVER_TRANSITIONS, RECEIVER_HARMLESS)


def test_nothing_leaves_a_terminal_state() -> None:
    terminal = {
        SenderState.STOPPED, SenderState.FAILED, ReceiverState.STOPPED, ReceiverState.FAILED,
    }  # fmt: skip
    for table in (SENDER_TRANSITIONS, RECEIVER_TRANSITIONS):
        assert not any(state in terminal for state, _ in table)


def test_a_peer_can_cause_no_impossible_pair() -> None:
    """What frames (and the owner) can cause is in a table for every state."""
    from_peer = (SenderInput.BEGIN, SenderInput.MISSING, SenderInput.STOP, SenderInput.FAIL)
    for pair in itertools.product(SenderState, from_peer):
        assert pair in SENDER_TRANSITIONS or pair in SENDER_HARMLESS
    for pair in itertools.product(
        ReceiverState,
        (ReceiverInput.ANNOUNCEMENT, ReceiverInput.NEWS, ReceiverInput.PROBE, ReceiverInput.FAIL),
    ):
        assert pair in RECEIVER_TRANSITIONS or pair in RECEIVER_HARMLESS


# --- the same through the methods: what the objects do in every state -----------------------------


def sender_in(pair: Pair, state: SenderState) -> Sender:
    sender = pair.send(DATA, wait_ready=state is SenderState.IDLE)
    if state is SenderState.PROBED:
        pair.a.channel.collect(100, 0)
        pair.a.session.on_progress(now=pair.now)
    elif state is SenderState.STOPPED:
        sender.on_stop(Stop(0, 1, CHUNKS, CHUNKS, False, b""), now=pair.now)
    elif state is SenderState.FAILED:
        sender.fail(OVER)
    assert sender.state is state
    pair.a.session.take_frames()
    return sender


def bitmap(**changes: object) -> Bitmap:
    fields = {
        "stream": 0, "round": 1, "epoch": 1, "accepted": 3, "first": 0, "count": CHUNKS,
        "total_fragments": 1, "encoding": "ranges", "data": b"\x01\x01", "sequence_seen": 0,
        "limit": 0,
    }  # fmt: skip
    return Bitmap(**(fields | changes))  # type: ignore[arg-type]


SENDER_METHODS: dict[SenderInput, Callable[[Sender], None]] = {
    SenderInput.BEGIN: lambda s: s.begin(now=1.0),
    SenderInput.PASS_OVER: lambda s: s.on_progress(now=1.0),
    SenderInput.STALL: lambda s: s.on_stall(now=1.0),
    SenderInput.PROBE_DUE: lambda s: s.on_timeout(now=100.0),
    SenderInput.MISSING: lambda s: s.on_bitmap(bitmap(), now=1.0),
    SenderInput.STOP: lambda s: s.on_stop(Stop(0, 1, 3, CHUNKS, False, b"\x00\x01"), now=1.0),
    SenderInput.FAIL: lambda s: s.fail(OVER),
}


@pytest.mark.parametrize(("state", "input_"), SENDER_PAIRS)
def test_sender_methods_in_every_state(
    fastpath: ModuleType, state: SenderState, input_: SenderInput
) -> None:
    pair = Pair(fastpath)
    sender = sender_in(pair, state)
    if state is SenderState.SENDING and input_ is SenderInput.PASS_OVER:
        pair.a.channel.collect(100, 0)
    before = (sender.state, sender.timer, sender.epoch, sender.report)
    SENDER_METHODS[input_](sender)
    acts = (state, input_) in SENDER_TRANSITIONS
    # In SENDING no epoch has been probed yet: the bitmap is of no epoch and is ignored.
    if acts and (state, input_) != (SenderState.SENDING, SenderInput.MISSING):
        assert sender.state is SENDER_TRANSITIONS[state, input_]
    else:
        assert (sender.state, sender.timer, sender.epoch, sender.report) == before
        assert pair.a.session.take_frames() == []
    if sender.is_over:
        assert sender.timer is None
        assert pair.a.channel.collect(100, 10**10) == []


ANNOUNCEMENT = Open(0, 1, DATA.nbytes, CHUNK_BYTES, "float32", False, 1.0, None, False, None)
PROBE = Probe(ANNOUNCEMENT, 1, 4)


def fill(pair: Pair, indices: range) -> None:
    raw = DATA.tobytes()
    pair.b.channel.ingest(
        [
            pair.fastpath.pack_datagram(
                0, 0, 0, i + 1, 1, i, 7, raw[i * CHUNK_BYTES : (i + 1) * CHUNK_BYTES]
            )
            for i in indices
        ],
        0,
    )


def receiver_in(pair: Pair, state: ReceiverState) -> Receiver:
    receiver = pair.arm(np.zeros_like(DATA))
    if state is not ReceiverState.IDLE:
        receiver.on_announcement(ANNOUNCEMENT, EXACT, wants_ready=False, now=pair.now)
    if state is ReceiverState.STOPPED:
        fill(pair, range(CHUNKS))
        receiver.on_progress(now=pair.now)
    elif state is ReceiverState.FAILED:
        receiver.fail(OVER)
    assert receiver.state is state
    pair.b.session.take_frames()
    return receiver


RECEIVER_METHODS: dict[ReceiverInput, Callable[[Receiver], None]] = {
    ReceiverInput.ANNOUNCEMENT: lambda r: r.on_announcement(
        ANNOUNCEMENT, EXACT, wants_ready=True, now=1.0
    ),
    ReceiverInput.NEWS: lambda r: r.on_progress(now=1.0),
    ReceiverInput.SATISFIED: lambda r: r.on_progress(now=1.0),
    ReceiverInput.PROBE: lambda r: r.on_probe(PROBE, now=1.0),
    ReceiverInput.ANSWER_DUE: lambda r: r.on_timeout(now=100.0),
    ReceiverInput.FAIL: lambda r: r.fail(OVER),
}


@pytest.mark.parametrize(("state", "input_"), RECEIVER_PAIRS)
def test_receiver_methods_in_every_state(
    fastpath: ModuleType, state: ReceiverState, input_: ReceiverInput
) -> None:
    pair = Pair(fastpath)
    receiver = receiver_in(pair, state)
    if input_ is ReceiverInput.NEWS:
        fill(pair, range(1))
    elif input_ is ReceiverInput.SATISFIED:
        fill(pair, range(CHUNKS))
    elif input_ is ReceiverInput.ANSWER_DUE and state is ReceiverState.RECEIVING:
        receiver.on_probe(PROBE, now=1.0)
    RECEIVER_METHODS[input_](receiver)
    assert receiver.state is RECEIVER_TRANSITIONS.get((state, input_), state)
    frames = pair.b.session.take_frames()
    if state in (ReceiverState.STOPPED, ReceiverState.FAILED):
        assert frames == [] and receiver.timer is None
    elif input_ is ReceiverInput.ANSWER_DUE and state is ReceiverState.RECEIVING:
        assert [type(frame) for frame, _ in frames] == [Bitmap]
    if state is ReceiverState.STOPPED:
        assert len(pair.b.session.take_events()) == 1  # R2: one decision
