"""What the server keeps for one stream, and for all of them."""

from __future__ import annotations

from collections.abc import Sequence

from ..config import TransportConfig
from ..errors import RoundTimeoutError
from ..phase import Decision
from ..wire import Open, next_round
from .server_round import ServerRound, Stage

__all__ = ["StreamState", "StreamTable"]


class StreamState:
    """One stream on the server.

    `current` is the round whose uplinks are not all in; `previous` is the one before it while its
    downlink is still going.  There are never more: a worker announces round r+1 only when it has
    the result of round r (`WorkerCore`), so the announcements of r+1 end the downlinks of r.
    """

    __slots__ = ("current", "decision", "early", "previous", "ranks", "world")

    def __init__(
        self, stream: int, *, round_id: int, world: int, ranks: Sequence[int], decision: Decision
    ) -> None:
        self.world = world
        self.ranks = ranks
        self.decision = decision
        """Newest decision of the policy for this stream."""
        self.current = ServerRound(
            stream=stream, round_id=round_id, step=0, world=world, ranks=ranks, decision=decision
        )
        self.previous: ServerRound | None = None
        self.early: list[tuple[int, Open]] = []
        """Announcements (rank, Open) of the round after `current`.  At tolerance 0 the fast path
        can complete a mean, and a worker can answer, before this core was told."""

    def advance(self) -> ServerRound:
        """All uplinks of `current` are in: the next round becomes the current one."""
        done = self.current
        assert self.previous is None, "the announcements of a round end the downlinks before it"
        if done.stage is not Stage.DONE:
            self.previous = done
        self.current = ServerRound(
            stream=done.stream,
            round_id=next_round(done.round_id),
            step=done.step + 1,
            world=self.world,
            ranks=self.ranks,
            decision=self.decision,
        )
        return self.current

    def open_rounds(self) -> list[ServerRound]:
        """The rounds that at least one rank has announced and that are not done, oldest first."""
        rounds = [] if self.previous is None else [self.previous]
        if self.current.offered:
            rounds.append(self.current)
        return rounds

    def left_alone(self, left: set[int]) -> str:
        """Who waits in vain for a rank that has said goodbye, as one sentence; '' if nobody."""
        round_ = self.current
        if not round_.offered:
            return ""
        for rank in sorted(left):
            if round_.offers[rank] is None:
                waiting = next(r for r, offer in enumerate(round_.offers) if offer is not None)
                return (
                    f"{round_.where}: rank {waiting} waits for rank {rank}, which has closed its "
                    f"worker: all ranks must run the same rounds"
                )
            # A worker that has the mean has sent what the server needs: this one has not.
            if not round_.receivers or not round_.receivers[self.ranks.index(rank)].is_over:
                return (
                    f"{round_.where}: rank {rank} has closed its worker in the middle of the "
                    f"round: wait for all_reduce to return before closing"
                )
        return ""

    def find(self, round_id: int) -> ServerRound | None:
        """The round with this id, if it is still going."""
        if self.current.round_id == round_id:
            return self.current
        if self.previous is not None and self.previous.round_id == round_id:
            return self.previous
        return None


class StreamTable:
    """The streams of a server by id; a stream begins with its first announcement.

    Commands: `take`, `clear`.  Getters: everything else.
    """

    __slots__ = ("_decision", "_first_round", "_ranks", "_streams", "_world")

    def __init__(
        self, *, world: int, ranks: Sequence[int], first_round: int, decision: Decision
    ) -> None:
        """`ranks`: the remote ones; `decision`: for the first uplinks of every stream."""
        self._world = world
        self._ranks = ranks
        self._first_round = first_round
        self._decision = decision
        self._streams: dict[int, StreamState] = {}

    def take(self, stream: int) -> StreamState:
        """The state of `stream`, fresh if there was none."""
        state = self._streams.get(stream)
        if state is None:
            state = self._streams[stream] = StreamState(
                stream,
                round_id=self._first_round,
                world=self._world,
                ranks=self._ranks,
                decision=self._decision,
            )
        return state

    def clear(self) -> None:
        """Forgets all."""
        self._streams.clear()

    def open_rounds(self) -> list[ServerRound]:
        """The rounds that at least one rank has announced and that are not done."""
        return [round_ for state in self._streams.values() for round_ in state.open_rounds()]

    def next_timeout(self) -> float | None:
        """When the first round is over its time, in seconds; None: no round is open."""
        return min(
            (round_.deadline for round_ in self.open_rounds() if round_.deadline is not None),
            default=None,
        )

    def overdue(self, now: float, config: TransportConfig) -> RoundTimeoutError | None:
        """The error of the first round that is over its time, if there is one."""
        for round_ in self.open_rounds():
            if round_.deadline is not None and now >= round_.deadline:
                gathering = config.straggler_timeout_s is not None and None in round_.offers
                limit_s = config.announce_timeout_s if gathering else config.timeout_s
                setting = "straggler_timeout_s" if gathering else "timeout_s"
                return RoundTimeoutError(
                    f"{round_.where} is not complete after {limit_s:g} s: "
                    f"{round_.waiting_for()}; look at that rank, or raise {setting}",
                    round_.progress_report(now=now),
                )
        return None

    def stall(self) -> str:
        """What every open round waits for, by stream, phase and rank; '' when there is none."""
        return "; ".join(
            f"{round_.where} ({round_.stage.value}): {round_.waiting_for()}"
            for round_ in self.open_rounds()
        )

    def left_alone(self, left: set[int]) -> str:
        """Who waits in vain for a rank that has said goodbye, as one sentence; '' if nobody."""
        for state in self._streams.values():
            if reason := state.left_alone(left):
                return reason
        return ""
