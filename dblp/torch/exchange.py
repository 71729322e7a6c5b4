"""For loops without DDP: the mean of gradients, or of anything else of fixed shapes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import torch
import torch.distributed as dist

from ..errors import ConfigError, LocalProtocolError
from ..phase import TolerancePolicy
from ..tolerance import Tolerance
from .engine import StepReport
from .layout import BucketLayout, Slot
from .state import DBLPState

__all__ = ["GradientExchange"]


@dataclass(slots=True)
class _Bucket:
    """Parameters that travel together."""

    places: list[int]
    flat: torch.Tensor
    layout: BucketLayout


class GradientExchange:
    """Averages the gradients of `parameters` over all ranks.

    ```python
    exchange = dblp.torch.GradientExchange(model.parameters())
    loss.backward()
    exchange.step()          # .grad of every parameter is now the mean over the ranks
    optimizer.step()
    ```

    Or averages tensors of the same shapes, such as the pseudo-gradients of DiLoCo's outer steps:

    ```python
    deltas = [before - now for before, now in zip(anchor, model.parameters())]
    exchange.average(deltas)
    ```

    Every call is a step for the policy.  Replicas must start equal; nothing here makes them so,
    except `state.resync()`.
    """

    def __init__(
        self,
        parameters: Iterable[torch.Tensor] | Iterable[tuple[str, torch.Tensor]],
        *,
        process_group: dist.ProcessGroup | None = None,
        bucket_bytes: int = 25 << 20,
        policy: TolerancePolicy | None = None,
        tolerance: Tolerance | Fraction | int | str | None = None,
        grad_scaler: Any = None,
        optimizer: torch.optim.Optimizer | None = None,
        **options: Any,
    ) -> None:
        """Connects all ranks; collective.

        Args:
            parameters: `model.parameters()`, or `model.named_parameters()` where `exact` or
                checkpoints are to know the names.
            process_group: the ranks that average; None: all.
            bucket_bytes: tensors travel in flat buckets of about this size.
            policy, tolerance, grad_scaler, optimizer: as for `dblp.torch.register`.
            **options: see `ExchangeOptions`.

        Raises:
            ConfigError, PeerLostError: as `DBLPState`.
        """
        named = [
            item if isinstance(item, tuple) else (f"parameter {place}", item)
            for place, item in enumerate(parameters)
        ]
        if not named:
            raise ConfigError("there are no parameters to average: pass model.parameters()")
        if bucket_bytes < 1:
            raise ConfigError(f"bucket_bytes is {bucket_bytes}: choose a size such as 25 << 20")
        self._parameters = [parameter for _, parameter in named]
        self._buckets = _cut(named, bucket_bytes)
        self.state = DBLPState(
            process_group,
            named_parameters=named,
            policy=policy,
            tolerance=tolerance,
            grad_scaler=grad_scaler,
            optimizer=optimizer,
            **options,
        )
        """Checkpoints, reports and errors, as for DDP."""

    def step(self) -> StepReport:
        """Replaces the `.grad` of every parameter by its mean over the ranks, and waits for it.

        A parameter without a gradient counts as zero and gets the mean like all others.

        Raises:
            DBLPError: as `Mesh.all_reduce`; what was on the way is unspecified.
        """
        for parameter in self._parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        return self.average([parameter.grad for parameter in self._parameters])

    @torch.no_grad()
    def average(self, tensors: Sequence[torch.Tensor | None]) -> StepReport:
        """Replaces each of `tensors`, which have the shapes of the parameters, by its mean.

        Raises:
            LocalProtocolError: the tensors do not fit the parameters.
            DBLPError: as `Mesh.all_reduce`; the tensors are then as they were.
        """
        self._check(tensors)
        engine = self.state.engine
        self.state.check()
        if engine.is_open:
            engine.forget()
        futures = []
        for stream, bucket in enumerate(self._buckets):
            parts = [tensors[place] for place in bucket.places]
            for slot, part in zip(bucket.layout.slots, parts, strict=True):
                assert part is not None
                bucket.flat[slot.start : slot.stop].copy_(_real(part).reshape(-1))
            futures.append(engine.launch(stream, bucket.flat, bucket.layout))
        self.state.finish_step(together=True)
        for future in futures:  # on a GPU the results are still being copied to the buckets
            future.wait()
        for bucket in self._buckets:
            for slot, place in zip(bucket.layout.slots, bucket.places, strict=True):
                target = tensors[place]
                assert target is not None
                real = _real(target)
                real.copy_(bucket.flat[slot.start : slot.stop].view(real.shape))
        assert self.state.last_report is not None
        return self.state.last_report

    def _check(self, tensors: Sequence[torch.Tensor | None]) -> None:
        if len(tensors) != len(self._parameters):
            raise LocalProtocolError(
                f"{len(tensors)} tensors were given for {len(self._parameters)} parameters: pass "
                "one for each"
            )
        for place, (tensor, parameter) in enumerate(zip(tensors, self._parameters, strict=True)):
            if tensor is None or tensor.layout != torch.strided:
                raise LocalProtocolError(f"tensor {place} is None or sparse: pass a dense one")
            if tensor.shape != parameter.shape or tensor.dtype != parameter.dtype:
                raise LocalProtocolError(
                    f"tensor {place} is {tensor.dtype} of shape {tuple(tensor.shape)}, the "
                    f"parameter {parameter.dtype} of {tuple(parameter.shape)}: pass the same"
                )

    def close(self) -> None:
        """Releases sockets and threads; idempotent, never waits for other ranks."""
        self.state.close()

    def __enter__(self) -> GradientExchange:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


def _real(tensor: torch.Tensor) -> torch.Tensor:
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def _cut(named: Sequence[tuple[str, torch.Tensor]], bucket_bytes: int) -> list[_Bucket]:
    """Buckets of one dtype and device each, in the order of the parameters."""
    groups: list[tuple[tuple[Any, ...], list[int], int]] = []
    for place, (_, parameter) in enumerate(named):
        real = _real(parameter.detach())
        kind = (real.dtype, real.device)
        size = real.numel() * real.element_size()
        last = groups[-1] if groups else None
        if last is not None and last[0] == kind and last[2] + size <= bucket_bytes:
            last[1].append(place)
            groups[-1] = (kind, last[1], last[2] + size)
        else:
            groups.append((kind, [place], size))
    buckets = []
    for (dtype, device), places, _ in groups:
        start, slots = 0, []
        for place in places:
            name, parameter = named[place]
            size = _real(parameter.detach()).numel()
            slots.append(Slot(name, start, start + size))
            start += size
        flat = torch.empty(start, dtype=dtype, device=device)
        buckets.append(_Bucket(places, flat, BucketLayout(tuple(slots))))
    return buckets
