"""A worker of a `dblp.ParameterServer` that runs elsewhere, as a `Collective`."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

from ..collective.base import ExchangeReport
from ..collective.worker import AllReduceReport, Worker
from ..config import TransportConfig
from ..faults import Impairment
from ..tolerance import Tolerance

__all__ = ["ServerLink"]


class ServerLink:
    """One rank of a job with an external server.  The server's policy decides on tolerances."""

    def __init__(
        self,
        address: str,
        *,
        rank: int,
        world: int,
        config: TransportConfig,
        fingerprint: str,
        impairment: Impairment | None = None,
    ) -> None:
        """Connects, as `Worker` does."""
        self.rank = rank
        self.world = world
        self._worker = Worker(
            address,
            rank=rank,
            world=world,
            config=config,
            fingerprint=fingerprint,
            impairment=impairment,
        )
        self.downlink = self._worker.downlink
        """As the server has it."""

    def all_reduce_async(
        self,
        grad: Any,
        *,
        stream: int = 0,
        tolerance: Tolerance | str | None = None,
        critical: bool = False,
        squared_norm: float | None = None,
    ) -> Future[ExchangeReport]:
        """As `Collective.all_reduce_async`; `tolerance` is the server's business."""
        future: Future[ExchangeReport] = Future()

        def convert(done: Future[AllReduceReport]) -> None:
            error = done.exception()
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(_report_of(stream, done.result()))

        started = self._worker.all_reduce_async(grad, stream=stream, squared_norm=squared_norm)
        started.add_done_callback(convert)
        return future

    def close(self) -> None:
        """Leaves the job."""
        self._worker.close()


def _report_of(stream: int, report: AllReduceReport) -> ExchangeReport:
    return ExchangeReport(
        stream=stream,
        tolerance=report.tolerance,
        mean_squared_norm=report.mean_squared_norm,
        lost=(),
        delivered_share=report.delivered_share,
        regime=report.regime,
        elapsed_s=report.elapsed_s,
        rounds=(report.uplink, report.downlink),
    )
