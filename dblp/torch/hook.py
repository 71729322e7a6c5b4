"""The one line: `dblp.torch.register(ddp_model)`.

No `from __future__ import annotations` here: DDP compares the annotations of a hook with the types
themselves (field problem 28).
"""

from fractions import Fraction
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from ..errors import ConfigError, LocalProtocolError
from ..phase import TolerancePolicy
from ..tolerance import Tolerance
from .state import DBLPState

__all__ = ["dblp_hook", "register"]

FIRST_BUCKET = 0


def dblp_hook(
    state: DBLPState,
    bucket: dist.GradBucket,  # type: ignore[name-defined]  # torch has it at run time only
) -> torch.futures.Future[torch.Tensor]:
    """A communication hook for `DistributedDataParallel.register_comm_hook`.

    Returns at once; all buckets of a step are in flight together.  At the end of the backward pass
    the step is waited for, where Ctrl-C gets through, and what failed is raised from backward()
    with its own type.  DDP itself would wait where no signal arrives and lose the type.
    """
    try:
        engine = state.engine
    except LocalProtocolError as error:
        return _refused(bucket, error)
    if bucket.index() == FIRST_BUCKET and engine.is_open:
        # A rank that has joined early runs the hook outside of backward(), and so nothing ended
        # its last step; DDP has waited for it.  Or backward() was left by an exception.
        _end_previous_step(state)
    buffer = bucket.buffer()
    is_sparse = buffer.layout != torch.strided
    layout = state.layout_of(bucket) if state.needs_layouts or is_sparse else None
    future = engine.launch(bucket.index(), buffer, layout)
    # With the last bucket, as DDP does: under reentrant checkpointing a backward pass has others
    # inside, and the first bucket may be full in one of those.
    if bucket.is_last() and not _run_at_the_end_of_backward(lambda: _end_this_step(state)):
        state.check()
    return future


def _end_previous_step(state: DBLPState) -> None:
    """An error is raised at the end of this step: DDP's reducer survives none in a hook."""
    try:
        state.finish_step(together=False)
    except Exception as error:
        state.engine.fail(error)


def _end_this_step(state: DBLPState) -> None:
    """After the last bucket was launched, before DDP takes the results."""
    try:
        state.finish_step(together=not state.is_joining)
    except Exception as error:
        _raise_after_ddp(error)


def _refused(bucket: Any, error: Exception) -> torch.futures.Future[torch.Tensor]:
    """There is no connection.  The bucket stays as it is, and backward() raises `error`."""
    buffer = bucket.buffer()
    devices = [buffer.device] if buffer.device.type == "cuda" else None
    future: torch.futures.Future[torch.Tensor] = torch.futures.Future(devices=devices)
    future.set_result(buffer)
    if bucket.is_last() and not _run_at_the_end_of_backward(lambda: _raise_after_ddp(error)):
        raise error
    return future


def _raise_after_ddp(error: Exception) -> None:
    """Called at the end of backward, before DDP's own callback, which leaves the reducer in order.
    Raises after that one."""

    def fail() -> None:
        raise error

    if not _run_at_the_end_of_backward(fail):
        raise error


def _run_at_the_end_of_backward(work: Any) -> bool:
    """Whether there is a backward pass at whose end `work` will run."""
    try:
        torch.autograd.Variable._execution_engine.queue_callback(work)
    except RuntimeError:  # only possible during a backward pass
        return False
    return True


def register(
    ddp_model: DistributedDataParallel,
    *,
    policy: TolerancePolicy | None = None,
    tolerance: Tolerance | Fraction | int | str | None = None,
    grad_scaler: Any = None,
    optimizer: torch.optim.Optimizer | None = None,
    **options: Any,
) -> DBLPState:
    """Makes a DDP model average its gradients over DBLP; collective, once per model.

    ```python
    model = DistributedDataParallel(model)
    dblp.torch.register(model)
    ```

    Args:
        ddp_model: the model, wrapped already.  Its process group tells the ranks each other's
            addresses; it still does the first broadcast of the parameters and that of buffers.
        policy: decides on the tolerance of every step; default: `GradientNormPolicy` with 0.8% in
            critical regimes and 40.8% elsewhere.
        tolerance: one tolerance for all steps, such as "0.8%"; 0 is exact.
        grad_scaler: the `torch.amp.GradScaler`, where there is one.
        optimizer: tells the learning rate to policies that look at it, such as
            `LearningRateDecay`; may be set later as `state.optimizer`.
        **options: see `ExchangeOptions`.

    Returns:
        The state: `state_dict()`, `last_report`, `close()`.

    Raises:
        ConfigError: the model is not DDP, has a hook already, has sparse gradients, or an option
            cannot be used.
        PeerLostError: a rank does not come or cannot be reached.
    """
    if not isinstance(ddp_model, DistributedDataParallel):
        raise ConfigError(
            f"{type(ddp_model).__name__} is not a DistributedDataParallel: wrap the model first, "
            "or use dblp.torch.GradientExchange"
        )
    if ddp_model._comm_hooks:
        hook = getattr(ddp_model._comm_hooks[0][0], "__name__", "hook")
        raise ConfigError(
            f"the model has the communication hook {hook} already, and DDP takes only one: "
            "register once, right after wrapping the model"
        )
    averaged = {
        name: item
        for name, item in ddp_model.module.named_parameters()
        if item.requires_grad and name not in ddp_model.parameters_to_ignore
    }
    for name, module in ddp_model.module.named_modules():
        weight = f"{name}.weight".removeprefix(".")
        if getattr(module, "sparse", False) is True and weight in averaged:
            raise ConfigError(
                f"the gradient of {name or 'the module'}.weight is sparse, which cannot be "
                "averaged here: use sparse=False, or keep that module out of DDP"
            )
    state = DBLPState(
        ddp_model.process_group,
        named_parameters=averaged.items(),
        policy=policy,
        tolerance=tolerance,
        grad_scaler=grad_scaler,
        optimizer=optimizer,
        **options,
    )
    state.watch_join(ddp_model)
    ddp_model.register_comm_hook(state, dblp_hook)
    return state
