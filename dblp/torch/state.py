"""The state of the communication hook: what a script holds, checkpoints and closes."""

from __future__ import annotations

import hashlib
import os
import weakref
from collections.abc import Callable, Iterable, Mapping
from fractions import Fraction
from typing import Any

import torch
import torch.distributed as dist

from ..collective.base import Collective
from ..errors import ConfigError, LocalProtocolError
from ..phase import TolerancePolicy
from ..tolerance import Tolerance
from .consistency import ReplicaCheck, resync
from .engine import EngineParts, ExchangeEngine, StepReport
from .feedback import ErrorFeedback
from .group import RankGroup
from .join import JoinWatch
from .layout import BucketLayout, Slot, check_patterns
from .options import SERVER_DECIDES, ExchangeOptions, choose_policy, options_from
from .recovery import Recovery
from .rendezvous import Meeting, meet
from .steps import StepClock

__all__ = ["DBLPState"]

STATE_VERSION = 1

Parameters = Iterable[tuple[str, torch.Tensor]]


class DBLPState:
    """State for `dblp_hook`, in the style of PyTorch's own hooks with state.

    ```python
    state = dblp.torch.DBLPState(named_parameters=ddp_model.module.named_parameters())
    ddp_model.register_comm_hook(state, dblp.torch.dblp_hook)
    ```

    `dblp.torch.register` does both in one line.

    *Commands*: `check`, `resync`, `load_state_dict`, `connect`, `close`.
    *Getters*: `step`, `error`, `last_report`, `state_dict`.
    """

    def __init__(
        self,
        process_group: dist.ProcessGroup | None = None,
        *,
        named_parameters: Parameters = (),
        policy: TolerancePolicy | None = None,
        tolerance: Tolerance | Fraction | int | str | None = None,
        grad_scaler: Any = None,
        optimizer: torch.optim.Optimizer | None = None,
        **options: Any,
    ) -> None:
        """Connects all ranks of the process group; collective.

        Args:
            process_group: the ranks that average; None: all.
            named_parameters: names for `exact`, checkpoints of residuals and errors.
            policy: decides on the tolerance of every step; default: `GradientNormPolicy` with the
                paper's tolerances, 0.8% in critical regimes and 40.8% elsewhere.
            tolerance: one tolerance for all steps, such as "0.8%"; 0 is exact.
            grad_scaler: the `torch.amp.GradScaler` of the training, if there is one: norms and
                residuals are then kept without its scale.
            optimizer: tells the learning rate to policies that look at it.
            **options: see `ExchangeOptions`.

        Raises:
            ConfigError: an option cannot be used, or differs between ranks.
            PeerLostError: a rank does not come or cannot be reached.
        """
        self.options: ExchangeOptions = options_from(options)
        if self.options.address is not None and (policy is not None or tolerance is not None):
            raise ConfigError(
                "the server at address= decides on the tolerance: give it the policy, and leave "
                "policy= and tolerance= out here"
            )
        if self.options.address is not None:
            tolerance = SERVER_DECIDES
        self.grad_scaler = grad_scaler
        """May be set later, before the first step."""
        self.optimizer = optimizer
        """May be set later, too."""
        self.on_step: Callable[[StepReport], None] | None = None
        """Called with the report of every step."""
        self.last_report: StepReport | None = None
        self._parameters: dict[str, torch.Tensor] = {}
        self._names: dict[int, str] = {}
        """By address: DDP hands out views of complex parameters."""
        self._layouts: dict[tuple[int, ...], BucketLayout] = {}
        self._clock = StepClock(
            choose_policy(policy, tolerance), per_bucket=self.options.per_bucket
        )
        self._feedback = ErrorFeedback() if self.options.feeds_back else None
        self._meeting: Meeting | None = None
        self._engine: ExchangeEngine | None = None
        self._join: JoinWatch | None = None
        self._pid = os.getpid()
        self.connect(process_group, named_parameters)

    # --- connections

    def connect(
        self,
        process_group: dist.ProcessGroup | None = None,
        named_parameters: Parameters = (),
    ) -> None:
        """Connects all ranks; collective.  Only needed after unpickling: __init__ does it.

        Raises:
            ConfigError, PeerLostError: as __init__.
        """
        if self._engine is not None:
            raise LocalProtocolError("this state is connected already: call close() first")
        named = list(named_parameters)
        self._parameters = dict(named)
        if len(self._parameters) != len(named):
            raise ConfigError("two parameters have the same name: give each its own")
        self._names = {item.data_ptr(): name for name, item in named if item.numel()}
        self._layouts.clear()
        self._check_names()
        if not named and self.options.residual is None:
            self._feedback = None  # DDP's buckets change, and nothing else would tell what is whose
        self.options.check_devices(item.device for item in self._parameters.values())
        meeting = meet(process_group, self.options, self._terms())
        self._start(meeting, meeting.connect())

    def _check_names(self) -> None:
        options = self.options
        for wish in ("exact", "residual", "checked_every"):
            if getattr(options, wish) and not self._parameters:
                raise ConfigError(
                    f"{wish.replace('checked', 'check')} needs to know the parameters: pass "
                    "named_parameters=model.named_parameters()"
                )
        check_patterns(options.exact, self._parameters)

    def _start(self, meeting: Meeting, collective: Collective) -> None:
        options = self.options
        recovery = replicas = None
        if options.on_error != "raise":
            recovery = Recovery(options.on_error, meeting.group, meeting.connect)
        if options.checked_every:
            replicas = ReplicaCheck(
                list(self._parameters.values()),
                meeting.group,
                every=options.checked_every,
                resync=options.replicas_may_drift,
            )
        self._meeting = meeting
        self._engine = ExchangeEngine(
            EngineParts(
                collective=collective,
                options=options,
                clock=self._clock,
                feedback=self._feedback,
                recovery=recovery,
                replicas=replicas,
                get_scale=weak_method(self, "loss_scale", 1.0),
                get_learning_rate=weak_method(self, "learning_rate", None),
            )
        )
        # At exit, too: atexit runs while the transport's daemon thread is still alive.
        self._finalizer = weakref.finalize(self, _close, self._engine, meeting.group, os.getpid())

    def _terms(self) -> dict[str, str]:
        shapes = [(name, tuple(p.shape), str(p.dtype)) for name, p in self._parameters.items()]
        return {
            "policy": self._clock.policy.describe(),
            "step": str(self._clock.step),
            "model (hash of names, shapes and dtypes)": hashlib.sha256(
                repr(shapes).encode()
            ).hexdigest()[:16],
        }

    def loss_scale(self) -> float:
        """What mixed precision multiplies the loss by; 1 without a scaler."""
        scaler = self.grad_scaler
        if scaler is None or not scaler.is_enabled():
            return 1.0
        return float(scaler.get_scale())

    def learning_rate(self) -> float | None:
        """The largest of the optimizer's parameter groups; None where it is not known."""
        if self.optimizer is None:
            return None
        return max(float(group["lr"]) for group in self.optimizer.param_groups)

    # --- what the hook needs

    @property
    def engine(self) -> ExchangeEngine:
        """The steps; LocalProtocolError where there is no connection."""
        if os.getpid() != self._pid:
            raise LocalProtocolError(
                "this state was made before fork(), and its sockets and thread stayed in the "
                "parent process: register in the process that trains"
            )
        if self._engine is None:
            raise LocalProtocolError(
                "this state is not connected (it was unpickled, or closed): call connect() on "
                "all ranks, or register again"
            )
        return self._engine

    @property
    def needs_layouts(self) -> bool:
        """Whether it matters which parameter lies where."""
        return bool(self.options.exact) or self._feedback is not None

    def watch_join(self, ddp_model: Any) -> None:
        """Looks when the model runs under `join()`: then ranks end steps alone."""
        self._join = JoinWatch(ddp_model, weak_method(self, "_end_open_step", None))

    @property
    def is_joining(self) -> bool:
        """Whether ranks may run out of inputs at different times, so that not all of them come to
        the end of a backward pass."""
        return self._join is not None and self._join.is_joining

    def layout_of(self, bucket: Any) -> BucketLayout:
        """Names and places of the parameters in a DDP bucket, known by the parameters, never by
        the index: DDP rebuilds its buckets."""
        parameters = bucket.parameters()
        key = tuple(map(id, parameters))
        found = self._layouts.get(key)
        if found is None:
            buffer = bucket.buffer()
            slots = []
            gradients = [] if buffer.layout != torch.strided else bucket.gradients()
            for place, parameter in enumerate(parameters):
                where = parameter.data_ptr() if parameter.layout == torch.strided else 0
                name = self._names.get(where, f"parameter {place} at {where:#x}")
                start = size = 0
                if gradients:
                    start = gradients[place].storage_offset() - buffer.storage_offset()
                    # A complex gradient's view has half of its elements (PyTorch 2.13).
                    size = parameter.numel() * (2 if parameter.is_complex() else 1)
                slots.append(Slot(name, start, start + size))
            slots.sort(key=lambda slot: slot.start)
            found = self._layouts[key] = BucketLayout(tuple(slots))
        return found

    def finish_step(self, *, together: bool) -> None:
        """Ends the step that goes on, if any, and tells `on_step`; see `ExchangeEngine.finish`."""
        report = self.engine.finish(together=together)
        if report is not None:
            self.last_report = report
            if self.on_step is not None:
                self.on_step(report)

    def _end_open_step(self) -> None:
        """At the end of a `join()` block: nothing else ends the last step of a rank that had no
        inputs left."""
        if self._engine is not None and self._engine.is_open:
            self.finish_step(together=False)

    # --- for the script

    @property
    def step(self) -> int:
        """Number of steps that have ended."""
        return self._clock.step

    @property
    def policy(self) -> TolerancePolicy:
        """The policy, the same object as was given."""
        return self._clock.policy

    @property
    def error(self) -> Exception | None:
        """The error after which no step can be made; None while all is well."""
        return None if self._engine is None else self._engine.error

    def check(self) -> None:
        """Raises the error of an earlier step, if there was one.

        backward() raises errors by itself; this is for ranks that have joined early (`join()`).
        """
        if self.error is not None:
            raise self.error.with_traceback(None)

    def resync(self, optimizer: torch.optim.Optimizer | None = None) -> float:
        """Makes all replicas equal to rank 0's; collective, between steps.

        Args:
            optimizer: its state is copied too, such as momenta, which drift as parameters do.

        Returns:
            The largest difference that any parameter had.
        """
        if self._meeting is None:
            raise LocalProtocolError("this state is not connected: call connect() on all ranks")
        drift = resync(list(self._parameters.values()), self._meeting.group)
        if optimizer is not None:
            resync(_state_tensors(optimizer), self._meeting.group)
        return drift

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint must keep of *this rank*: step, phase and residuals; no sockets.

        Residuals differ between ranks, so every rank saves its own, but with `residual=False`.
        """
        residuals = {} if self._feedback is None else self._feedback.state_dict()
        return {
            "version": STATE_VERSION,
            "clock": self._clock.state_dict(),
            "residuals": residuals,
            "owing": self._feedback is not None and self._feedback.is_needed,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on from a checkpoint; between steps, on all ranks.

        Raises:
            ConfigError: the state cannot be used here.
        """
        if (version := state.get("version")) != STATE_VERSION:
            raise ConfigError(
                f"the checkpoint has version {version!r} of the hook's state, this is "
                f"{STATE_VERSION}: use the dblp that wrote it"
            )
        if self._engine is not None and self._engine.is_open:
            raise LocalProtocolError("a step is under way: load the checkpoint before backward()")
        self._clock.load_state_dict(state["clock"])
        if self._feedback is not None:
            self._feedback.load_state_dict(state["residuals"])
            self._feedback.is_needed = bool(state.get("owing", True))

    def __getstate__(self) -> dict[str, Any]:
        """For pickles and copies: all but connections and parameters."""
        policy = self._clock.policy
        return {"options": self.options, "policy": policy, "state": self.state_dict()}

    def __setstate__(self, pickled: dict[str, Any]) -> None:
        self.options = pickled["options"]
        self.grad_scaler = self.optimizer = None
        self.on_step = None
        self.last_report = None
        self._parameters, self._names, self._layouts = {}, {}, {}
        self._clock = StepClock(pickled["policy"], per_bucket=self.options.per_bucket)
        self._feedback = ErrorFeedback() if self.options.feeds_back else None
        self._meeting = None
        self._engine = None
        self._join = None
        self._pid = os.getpid()
        self.load_state_dict(pickled["state"])

    def close(self) -> None:
        """Releases sockets and threads; idempotent, never waits for other ranks, harmless in a
        forked child."""
        if self._engine is not None and os.getpid() == self._pid:
            self._finalizer()
            self._engine = None
            self._meeting = None

    def __enter__(self) -> DBLPState:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


def weak_method(owner: Any, name: str, default: Any) -> Callable[[], Any]:
    """`owner.name` without keeping the owner alive, so that its finalizer runs."""
    reference = weakref.ref(owner)

    def call() -> Any:
        alive = reference()
        return default if alive is None else getattr(alive, name)()

    return call


def _close(engine: ExchangeEngine, group: RankGroup, pid: int) -> None:
    if os.getpid() == pid:
        engine.close()
        group.close()


def _state_tensors(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """The optimizer's floating-point state, in the order of its parameters."""
    found = []
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            state = optimizer.state.get(parameter, {})
            found += [
                value
                for _, value in sorted(state.items())
                if isinstance(value, torch.Tensor) and value.is_floating_point()
            ]
    return found
