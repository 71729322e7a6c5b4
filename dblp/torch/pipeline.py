"""What happens to one bucket: fetch, add residual, send, receive, repair, deliver.

Nothing here waits.  A bucket goes from the hook's thread to the transport's, and from there either
straight to DDP (a plain float32 bucket on the CPU: no copy at all) or through a thread of ours that
does what takes time.
"""

from __future__ import annotations

import logging
import math
import threading
from concurrent.futures import Future

import torch

from .. import fastpath
from ..buffers import byte_view_of
from ..collective.base import Collective, ExchangeReport
from ..errors import DBLPError, LocalProtocolError
from ..tolerance import EXACT
from .copies import KeptCopies
from .feedback import ErrorFeedback
from .layout import BucketLayout, subtract
from .options import ExchangeOptions
from .work import BucketWork, WorkThread, lossless_report

__all__ = ["EXACT_STREAMS", "BucketPipeline"]

EXACT_STREAMS = 1 << 15
"""Stream of the exact part of bucket b: b + 32768.  So there are that many buckets at most."""

EXACT_SHARE_MAX = 0.5
"""A bucket of which more than this is to be exact is sent exactly as a whole."""

log = logging.getLogger("dblp")


class BucketPipeline:
    """Sends buckets.  *Commands*: `launch`, `close`; `collective` may be replaced between steps."""

    def __init__(
        self,
        collective: Collective,
        options: ExchangeOptions,
        feedback: ErrorFeedback | None,
    ) -> None:
        self.collective = collective
        self._options = options
        self._feedback = feedback
        self._thread = WorkThread("dblp-results")
        self._backups: KeptCopies[int] = KeptCopies()
        self._wires: KeptCopies[int] = KeptCopies()

    def launch(self, work: BucketWork) -> None:
        """Starts the exchange of a bucket; `work.done` is set at its end, whatever happens."""
        if work.buffer.numel() == 0:
            work.report = lossless_report(work.stream, 0.0)
            work.complete()
            return
        try:
            if work.stream >= EXACT_STREAMS:
                raise LocalProtocolError(
                    f"bucket {work.stream} is one too many, there may be {EXACT_STREAMS}: use "
                    "larger buckets (bucket_cap_mb of DDP, bucket_bytes of GradientExchange)"
                )
            self._choose_exact_parts(work)
            if self._options.on_error == "gloo":
                work.backup = self._backups.copy_of(work.stream, work.buffer.detach())
            work.memory.fetch(work, self._send)
        except Exception as error:
            self._fail(work, error)

    def _choose_exact_parts(self, work: BucketWork) -> None:
        if self._options.address is not None:  # the server decides
            return
        size = work.buffer.numel() * work.buffer.element_size()
        if size <= self._options.exact_below_bytes:
            work.tolerance = EXACT
        if work.tolerance.is_exact or not self._options.exact or work.layout is None:
            return
        ranges = work.layout.matching(self._options.exact)
        share = sum(stop - start for start, stop in ranges) / work.buffer.numel()
        if share > EXACT_SHARE_MAX:
            work.tolerance = EXACT
        else:
            work.exact = ranges

    # --- towards the network

    @torch.no_grad()
    def _send(self, work: BucketWork) -> None:
        """With the gradient in CPU memory; on the hook's thread or that of the copies."""
        try:
            host = work.host
            assert host is not None
            norm = self._squared_norm(work, host)
            owing = self._owing(work)
            if owing is not None:
                feedback, layout = owing
                feedback.add_to(host, layout, scale=work.scale())
                if host.dtype == torch.float16 and not torch.isfinite(host).all():
                    norm = math.inf  # they have overflowed together: a step that will be skipped
                if work.tolerance.is_exact:
                    feedback.settle(layout)
            wire = self._on_the_wire(work, host)
            if owing is not None and not work.tolerance.is_exact and wire is host:
                feedback, layout = owing
                work.sent = feedback.copy_of(host, layout)  # the mean is written over what is sent
            self._exchange(work, host, wire, norm)
        except Exception as error:
            self._fail(work, error)

    def _owing(self, work: BucketWork) -> tuple[ErrorFeedback, BucketLayout] | None:
        """Where the bucket's losses are kept, if anything may have been lost by now."""
        if self._feedback is None or not self._feedback.is_needed or work.layout is None:
            return None
        return self._feedback, work.layout

    def _squared_norm(self, work: BucketWork, host: torch.Tensor) -> float:
        """Squared norm of the gradient before residual and loss, without the loss scale.

        NaN where nobody needs it: it costs a pass over the gradient.
        """
        if not work.measured:
            return math.nan
        view, dtype = byte_view_of(host, what="gradient", writable=True)
        return fastpath.squared_norm(view, dtype) / work.scale() ** 2

    def _on_the_wire(self, work: BucketWork, host: torch.Tensor) -> torch.Tensor:
        if self._options.wire_dtype == "bf16" and host.dtype in (torch.float32, torch.float64):
            return self._wires.copy_of(work.stream, host, torch.bfloat16)
        return host

    def _exchange(
        self, work: BucketWork, host: torch.Tensor, wire: torch.Tensor, norm: float
    ) -> None:
        exact = torch.cat([host[start:stop] for start, stop in work.exact]) if work.exact else None
        open_parts = [2 if exact is not None else 1]
        lock = threading.Lock()

        def part_done(future: Future[ExchangeReport], *, main: bool) -> None:
            error = future.exception()
            if error is not None:
                work.error = work.error or _as_dblp_error(error)
            elif main:
                work.report = future.result()
            with lock:
                open_parts[0] -= 1
                is_last = open_parts[0] == 0
            if is_last:
                self._arrived(work, wire, exact)

        collective = self.collective
        future = collective.all_reduce_async(
            wire,
            stream=work.stream,
            tolerance=work.tolerance,
            critical=work.critical,
            squared_norm=norm,
        )
        if exact is not None:
            beside = collective.all_reduce_async(
                exact,
                stream=EXACT_STREAMS + work.stream,
                tolerance=EXACT,
                critical=work.critical,
                squared_norm=0.0,
            )
            beside.add_done_callback(lambda done: part_done(done, main=False))
        future.add_done_callback(lambda done: part_done(done, main=True))

    # --- and back

    def _arrived(self, work: BucketWork, wire: torch.Tensor, exact: torch.Tensor | None) -> None:
        """On the transport's thread, which must not be held up."""
        is_plain = wire is work.host and exact is None and work.sent is None
        if work.error is None and (not is_plain or self._is_poisoned(work)):
            self._thread.submit(lambda: self._repair(work, wire, exact))
        elif work.memory.is_here:
            work.memory.deliver(work)
        else:  # a copy to the device is not for the transport's thread either
            self._thread.submit(lambda: work.memory.deliver(work))

    @staticmethod
    def _is_poisoned(work: BucketWork) -> bool:
        """Whether a rank's gradient was not finite and the round may have lost that."""
        report = work.report
        assert report is not None
        return not work.tolerance.is_exact and not math.isfinite(report.mean_squared_norm)

    @torch.no_grad()
    def _repair(self, work: BucketWork, wire: torch.Tensor, exact: torch.Tensor | None) -> None:
        """All that stands between what came and the result."""
        try:
            host, report = work.host, work.report
            assert host is not None and report is not None
            owing = self._owing(work)
            if owing is not None and not work.tolerance.is_exact:
                feedback, layout = owing
                sent = work.sent if work.sent is not None else host
                feedback.capture(
                    sent,
                    layout,
                    subtract(tuple(sorted(report.lost)), work.exact),
                    scale=work.scale(),
                )
            if wire is not host:
                host.copy_(wire)
            if exact is not None:
                place = 0
                for start, stop in work.exact:
                    host[start:stop] = exact[place : place + stop - start]
                    place += stop - start
            if self._is_poisoned(work):
                # The element that overflowed may be among the lost ones.  Every rank must see it.
                host.fill_(math.nan)
            work.sent = None
            work.memory.deliver(work)
        except Exception as error:
            self._fail(work, error)

    def _fail(self, work: BucketWork, error: BaseException) -> None:
        work.error = work.error or _as_dblp_error(error)
        if not work.done.is_set():
            work.complete()

    def close(self) -> None:
        """Ends its thread; does not wait."""
        self._thread.close()


def _as_dblp_error(error: BaseException) -> DBLPError:
    if isinstance(error, DBLPError):
        return error
    log.error("internal error in an exchange", exc_info=error)
    return DBLPError(f"internal error ({type(error).__name__}: {error}): please report it")
