"""What happens after an error, when the training is to go on: all ranks do the same.

An error may end a round on one rank and not on another, so the ranks compare notes at the end of
every step (one small all-reduce on the process group).  If any of them failed, all of them drop
the step ("skip") or repeat it over the process group and stay there ("gloo").
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from concurrent.futures import Future

import torch

from ..collective.base import Collective, ExchangeReport
from ..errors import ConfigError, DBLPError, PeerLostError, ProtocolError
from ..tolerance import Tolerance
from .group import RankGroup
from .work import BucketWork, WorkThread, lossless_report

__all__ = ["GroupCollective", "Recovery"]

log = logging.getLogger("dblp")

FINE, FAILED, HOPELESS = 0, 1, 2
"""How a step went; the worst of all ranks counts."""


class GroupCollective:
    """The process group as a `Collective`: exact, reliable, and as slow as it is."""

    def __init__(self, group: RankGroup) -> None:
        self._group = group
        self.rank = group.rank
        self.world = group.world
        self._thread = WorkThread("dblp-group")

    def all_reduce_async(
        self,
        grad: torch.Tensor,
        *,
        stream: int = 0,
        tolerance: Tolerance | str | None = None,
        critical: bool = False,
        squared_norm: float | None = None,
    ) -> Future[ExchangeReport]:
        """As `Collective.all_reduce_async`; calls are made in the same order on all ranks."""
        future: Future[ExchangeReport] = Future()
        norm = torch.tensor([math.nan if squared_norm is None else squared_norm]).double()

        def reduce() -> None:
            try:
                self._group.mean(grad)
                self._group.mean(norm)
            except (DBLPError, RuntimeError) as error:
                future.set_exception(error)
                return
            future.set_result(lossless_report(stream, float(norm.item())))

        self._thread.submit(reduce)
        return future

    def close(self) -> None:
        """Ends its thread; the process group stays."""
        self._thread.close()


class Recovery:
    """Settles every step in the same way on all ranks."""

    def __init__(self, kind: str, group: RankGroup, reconnect: Callable[[], Collective]) -> None:
        """
        Args:
            kind: "skip" or "gloo".
            group: of the ranks.
            reconnect: makes a new connection between all ranks; called on all of them.
        """
        self._kind = kind
        self._group = group
        self._reconnect = reconnect

    @torch.no_grad()
    def settle(
        self, works: Sequence[BucketWork], error: Exception | None, collective: Collective
    ) -> tuple[DBLPError | None, Collective | None]:
        """(error of this step on any rank, what to use from now on); (None, None) when all is well.

        `collective` is what was used; it is closed when it is not to be used any more.

        Raises:
            DBLPError: the training cannot go on.
        """
        outcome = torch.tensor([_outcome(error)])
        try:
            self._group.max(outcome)
        except DBLPError as failure:
            raise (error or failure) from failure
        if outcome.item() == FINE:
            return None, None
        error = error or PeerLostError("another rank reported an error: see its log")
        if outcome.item() == HOPELESS:
            raise error
        assert isinstance(error, DBLPError), "anything else is hopeless"
        try:
            for work in works:
                work.future.wait()
            collective.close()  # before others listen where it does
            if self._kind == "gloo":
                log.warning("%s; this step and those after it use the process group", error)
                self._repeat(works)
                return error, GroupCollective(self._group)
            log.warning("%s; the step is skipped on all ranks, which connect again", error)
            for work in works:
                work.buffer.zero_()
            return error, self._reconnect()
        except DBLPError as failure:
            raise error from failure

    def _repeat(self, works: Sequence[BucketWork]) -> None:
        for work in sorted(works, key=lambda item: item.stream):
            if work.backup is not None:
                work.buffer.copy_(work.backup)
                self._group.mean(work.buffer)


def _outcome(error: Exception | None) -> int:
    """A wrong use stays wrong in the next step, whatever carries it, and so does what a policy of
    the user's raised."""
    if error is None:
        return FINE
    is_wrong_use = isinstance(error, ProtocolError | ConfigError)
    return FAILED if isinstance(error, DBLPError) and not is_wrong_use else HOPELESS
