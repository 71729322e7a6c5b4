"""The steps of a training: buckets in, means out, one decision per step."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from ..collective.base import Collective, ExchangeReport
from ..errors import DBLPError, LocalProtocolError, RoundTimeoutError
from ..io.signals import signals_come_through
from ..phase import Regime
from .buffers import HostMemories
from .consistency import ReplicaCheck
from .feedback import ErrorFeedback
from .layout import BucketLayout
from .options import ExchangeOptions
from .pipeline import BucketPipeline
from .recovery import Recovery
from .steps import StepClock
from .work import BucketWork, LossScale

__all__ = ["ExchangeEngine", "StepReport"]

WAIT_SLICE_S = 0.2
"""A waiting thread looks for signals such as Ctrl-C so often."""

WAIT_MARGIN_S = 30.0
"""The transport ends every round within its own limits; this much later something is broken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReport:
    """What the exchange of one step did, seen from this rank."""

    step: int
    """Number of the step, from 0."""
    tolerance: str
    """Tolerance of the step, such as "40.8%"; with per_bucket that of the first bucket."""
    regime: str
    """"critical" or "normal"."""
    norm: float
    """L2 norm of the gradient: root of the mean over the ranks, the same on all of them; NaN when
    nobody needed it."""
    finite: bool
    """False: a rank's gradient had NaN or infinity, which mixed precision skips the step for.  True
    too where nobody looked: in exact steps of a policy that needs no norms."""
    delivered_share: float
    """Share of this rank's gradient that was delivered, 0 … 1."""
    exposed_s: float
    """Seconds that backward waited for the network at its end: communication that nothing hid."""
    communication_s: float
    """Seconds from the first bucket's start to the last one's end; `exposed_s` of them were not
    hidden behind backward."""
    drift: float | None = None
    """Largest difference between replicas, where it was measured."""
    recovered: DBLPError | None = None
    """The error that this step had and got over, by on_error."""
    exchanges: tuple[ExchangeReport, ...] = ()
    """What the transport says about each bucket: datagrams, losses, times."""


@dataclass(slots=True)
class EngineParts:
    """What an engine is made of; see the classes."""

    collective: Collective
    options: ExchangeOptions
    clock: StepClock
    memories: HostMemories = field(default_factory=HostMemories)
    feedback: ErrorFeedback | None = None
    recovery: Recovery | None = None
    replicas: ReplicaCheck | None = None
    get_scale: Callable[[], float] = field(default=lambda: 1.0)
    get_learning_rate: Callable[[], float | None] = field(default=lambda: None)


class ExchangeEngine:
    """Runs steps.

    *Commands*: `launch` (never waits), `finish` (waits for the step), `fail`, `forget`, `close`.
    *Getters*: `error`, `is_open`, `clock`.

    Errors are those of the transport, and whatever a policy or an optimizer of the user's raises
    when it is asked.  `launch` raises neither: DDP's reducer does not survive that.
    """

    def __init__(self, parts: EngineParts) -> None:
        self._parts = parts
        self.clock = parts.clock
        self.error: Exception | None = None
        """The first error that the training cannot go on after."""
        self._pipeline = BucketPipeline(parts.collective, parts.options, parts.feedback)
        self._works: list[BucketWork] = []
        self._scale = LossScale(parts.get_scale)
        self._refusal: Exception | None = None
        """Why no bucket of this step is sent: what the policy or the optimizer raised."""
        self._closed = False

    @property
    def is_open(self) -> bool:
        """Whether a step goes on."""
        return bool(self._works)

    def launch(
        self, stream: int, buffer: torch.Tensor, layout: BucketLayout | None
    ) -> torch.futures.Future[Any]:
        """Starts the exchange of one flat bucket; the future has the buffer at the end.

        An error completes the future too.  It is raised by `finish`.
        """
        memory = self._parts.memories.of(buffer.device)
        work = BucketWork(stream, buffer, layout, memory, memory.new_future())
        if not self._works:
            self._refusal = None if self._closed or self.error is not None else self._begin()
        self._works.append(work)
        work.error = self._objection(stream, buffer, layout) or self._decide(work)
        if work.error is None:
            self._pipeline.launch(work)
        else:
            work.complete()
        return work.future

    def _objection(
        self, stream: int, buffer: torch.Tensor, layout: BucketLayout | None
    ) -> Exception | None:
        """Why this bucket cannot be exchanged; None: it can."""
        if self._closed:
            return LocalProtocolError(
                "the gradient exchange is closed: register a new one before training goes on"
            )
        if self.error is not None or self._refusal is not None:
            return self.error or self._refusal
        if buffer.layout != torch.strided:
            names = ", ".join(layout.names) if layout is not None else f"bucket {stream}"
            return LocalProtocolError(
                f"the gradient of {names} is sparse, which cannot be averaged here: use "
                "sparse=False in the embedding, or keep that module out of DDP"
            )
        return None

    def _begin(self) -> Exception | None:
        """A step begins: asks policy and optimizer, which are the user's and may raise."""
        try:
            self.clock.decide(self._parts.get_learning_rate())
        except Exception as error:
            return self._refused(error)
        self._scale = LossScale(self._parts.get_scale)
        return None

    def _decide(self, work: BucketWork) -> Exception | None:
        """Fills in what the policy says about one bucket."""
        try:
            decision = self.clock.decision(work.stream)
            needs_norms = self.clock.needs_norms
        except Exception as error:
            self._refusal = self._refused(error)
            return self._refusal
        work.tolerance = decision.tolerance
        work.critical = decision.regime is Regime.CRITICAL
        work.scale = self._scale
        feedback, may_lose = self._parts.feedback, not decision.tolerance.is_exact
        if feedback is not None:
            feedback.is_needed = feedback.is_needed or may_lose
            needs_norms = needs_norms or feedback.is_needed
        work.measured = may_lose or needs_norms
        return None

    def _refused(self, error: Exception) -> Exception:
        """No bucket of this rank will come any more, which the others learn now."""
        self._pipeline.collective.close()
        return error

    def finish(self, *, together: bool = True) -> StepReport | None:
        """Waits for the buckets of this step and ends it.

        Args:
            together: all ranks do this now, so that they may talk to each other.

        Returns:
            None when no bucket was launched.

        Raises:
            DBLPError: the step failed; the contents of its buckets are unspecified.  What a policy
                raised when it was asked is raised as it is.
        """
        works, self._works = self._works, []
        if not works:
            return None
        began = time.perf_counter()
        for work in works:
            self._wait_for(work)
        exposed_s = time.perf_counter() - began
        # What the policy raised comes first: it is why other buckets ended early.
        error = self._refusal or next((w.error for w in works if w.error is not None), None)
        recovery = self._parts.recovery
        if recovery is not None and together and self.error is None:
            try:
                error, collective = recovery.settle(works, error, self._pipeline.collective)
            except Exception as fatal:
                self.fail(fatal)
                raise
            if collective is not None:
                self._pipeline.collective = collective
                return self._ended(works, exposed_s, recovered=error)
        if error is not None:
            self.fail(error)
            raise error
        return self._ended(works, exposed_s, together=together)

    def _wait_for(self, work: BucketWork) -> None:
        config = self._parts.options.config
        limit_s = config.longest_round_s + config.connect_timeout_s + WAIT_MARGIN_S
        until = time.monotonic() + limit_s
        while not self._is_done(work):
            if time.monotonic() > until:
                self.fail(
                    RoundTimeoutError(
                        f"bucket {work.stream} is not done after {limit_s:g} s, which the "
                        "transport should have reported: please report it"
                    )
                )
                assert self.error is not None
                raise self.error.with_traceback(None)

    def _is_done(self, work: BucketWork) -> bool:
        """Waits for a while; in slices Ctrl-C gets through."""
        with signals_come_through():
            return work.done.wait(WAIT_SLICE_S)

    def fail(self, error: Exception) -> None:
        """The training cannot go on after `error`: every later step ends with it."""
        if self.error is None:
            self.error = error
        if self._parts.feedback is not None:
            self._parts.feedback.discard()

    def _ended(
        self,
        works: list[BucketWork],
        exposed_s: float,
        *,
        recovered: DBLPError | None = None,
        together: bool = False,
    ) -> StepReport:
        """The step is over on all ranks: decides on the next."""
        step, parts = self.clock.step, self._parts
        decision = self.clock.decision(works[0].stream)
        if recovered is None:
            norms = {w.stream: w.report.mean_squared_norm for w in works if w.report is not None}
        else:  # not the same on all ranks
            norms = {work.stream: math.nan for work in works}
        norm = self.clock.finish(norms)
        measured = [norms[work.stream] for work in works if work.measured]
        finite = all(math.isfinite(value) for value in measured)
        if parts.feedback is not None:
            if finite:
                parts.feedback.commit()
            else:
                parts.feedback.discard()
        drift = None
        if parts.replicas is not None and together:
            try:
                drift = parts.replicas.after(step)
            except DBLPError as error:
                self.fail(error)
                raise
        tolerance, regime = str(decision.tolerance), decision.regime.value
        if parts.options.address is not None and works[0].report is not None:
            tolerance, regime = works[0].report.tolerance, works[0].report.regime or regime
        return StepReport(
            step=step,
            tolerance=tolerance,
            regime=regime,
            norm=norm,
            finite=finite,
            delivered_share=_delivered_share(works),
            exposed_s=exposed_s,
            communication_s=max(w.ended for w in works) - min(w.started for w in works),
            drift=drift,
            recovered=recovered,
            exchanges=tuple(work.report for work in works if work.report is not None),
        )

    def forget(self) -> None:
        """Drops a step that was never finished, such as after an exception in backward()."""
        self._works = []
        if self._parts.feedback is not None:
            self._parts.feedback.discard()

    def close(self) -> None:
        """Releases sockets and threads; idempotent, never waits for other ranks."""
        if not self._closed:
            self._closed = True
            self._pipeline.collective.close()  # ends what is on its way, for which threads work
            self._parts.memories.close()
            self._pipeline.close()


def _delivered_share(works: list[BucketWork]) -> float:
    total = sum(work.buffer.numel() for work in works)
    delivered = sum(
        work.buffer.numel() * work.report.delivered_share for work in works if work.report
    )
    return delivered / total if total else 1.0
