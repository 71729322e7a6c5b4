"""Which tolerance a round of the server has, and what of the mean goes down."""

from __future__ import annotations

import math
from typing import Literal

from ..config import TransportConfig
from ..phase import Decision, TolerancePolicy
from ..tolerance import EXACT, Tolerance
from .server_round import ServerRound, Stage

__all__ = ["Decisions", "Downlink", "NormSource"]

Downlink = Literal["exact", "common", "lossy"]
NormSource = Literal["sent", "received"]


class Decisions:
    """The policy decides, unless the ranks announce a tolerance; the same for all ranks (C1).

    Commands: `decide`.  Getters: everything else.
    """

    def __init__(self, policy: TolerancePolicy, *, downlink: Downlink, norm: NormSource) -> None:
        self.policy = policy
        self.initial = policy.initial()
        """For the first uplink of every stream."""
        self.norm_received = norm == "received"
        self.common = downlink == "common"
        self._exact = downlink == "exact"

    def decide(self, round_: ServerRound, mean_square: float) -> None:
        """All norms are known: fixes the decision of the round; the policy is asked once at most.

        Args:
            round_: whose ranks have all announced.
            mean_square: mean over the ranks of their squared norms; negative or NaN is unknown.
        """
        round_.mean_square = mean_square
        if round_.told is not None:
            round_.decision = round_.told
            return
        norm = math.sqrt(mean_square) if mean_square >= 0 else math.nan
        round_.decision = self.policy.observe(stream=round_.stream, step=round_.step, norm=norm)

    def following(self, round_: ServerRound, before: Decision) -> Decision:
        """For the next uplinks of the stream where the ranks announce nothing; `before`: for those
        of this round."""
        return before if round_.told is not None or round_.decision is None else round_.decision

    def downlink_tolerance(self, round_: ServerRound) -> Tolerance:
        """Of the downlinks of a round that is decided."""
        assert round_.decision is not None
        return EXACT if self._exact else round_.decision.tolerance

    def may_pipeline(self, round_: ServerRound, config: TransportConfig) -> bool:
        """Whether chunks may go down before all uplinks have stopped.

        A worker whose downlink ends zeroes the missing chunks of the buffer that it also sends
        from, and falls silent.  So the end of a downlink must imply that the server needs no more
        from any uplink: true if the downlink needs every chunk, or no fewer than an eager uplink.
        Without a local gradient to rank them by, the chunks of most energy can be chosen from the
        complete mean only.
        """
        assert round_.stage is Stage.FLOWING
        tolerance = self.downlink_tolerance(round_)
        count = round_.receivers[0].layout.count
        needed = tolerance.needed(count)
        if needed == count:
            return True
        if self.ranks_chunks(round_, config) and round_.local is None:
            return False
        return config.stop == "eager" and needed >= round_.uplink_tolerance.needed(count)

    def ranks_chunks(self, round_: ServerRound, config: TransportConfig) -> bool:
        """Whether a downlink that leaves chunks out leaves out those of least energy."""
        order = config.order_for(exact=False, dtype=round_.dtype)
        return self.common and order == "magnitude"
