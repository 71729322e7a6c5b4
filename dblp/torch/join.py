"""`DistributedDataParallel.join()`: whether a model is inside of such a block.

torch leaves the model's own flag on after the block, but it asks the model for a `JoinHook` at the
beginning of every block and calls that at its end.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from torch.distributed.algorithms.join import JoinHook
from torch.nn.parallel import DistributedDataParallel

__all__ = ["JoinWatch"]


class JoinWatch:
    """Takes the place of `join_hook` in one model, to see join blocks begin and end.

    A block that an exception leaves has no end: torch says nothing, and the next one's end counts.
    """

    def __init__(self, ddp_model: DistributedDataParallel, on_end: Callable[[], None]) -> None:
        """`on_end` is called on every rank when all have run out of inputs."""
        self._model = weakref.ref(ddp_model)  # it holds us
        self._on_end = on_end
        self._has_ended = False
        ddp_model.join_hook = self  # type: ignore[method-assign]

    @property
    def is_joining(self) -> bool:
        """Whether ranks may run out of inputs at different times, so that not all of them come to
        the end of a backward pass."""
        model = self._model()
        return model is not None and bool(model._join_config.enable) and not self._has_ended

    def __call__(self, **settings: Any) -> JoinHook:
        """A block begins (`torch.distributed.algorithms.join.Joinable.join_hook`)."""
        self._has_ended = False
        model = self._model()
        assert model is not None, "who else asks?"
        torchs_own: Any = type(model).join_hook
        return _NotedEnd(torchs_own(model, **settings), self)

    def end(self) -> None:
        """The block is over on all ranks."""
        self._has_ended = True
        self._on_end()

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies and pickles of the model have no hook of ours, so they get torch's own method."""
        return getattr, (self._model(), "join_hook")


class _NotedEnd(JoinHook):
    """torch's own hook, with word to the watch."""

    def __init__(self, hook: JoinHook, watch: JoinWatch) -> None:
        self._hook = hook
        self._watch = watch

    def main_hook(self) -> None:
        self._hook.main_hook()

    def post_hook(self, is_last_joiner: bool) -> None:
        self._hook.post_hook(is_last_joiner)
        self._watch.end()
