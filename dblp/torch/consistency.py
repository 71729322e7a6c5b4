"""Whether the replicas are still equal, and what to do when they are not (field problem 18)."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

import torch

from .. import fastpath
from ..buffers import byte_view_of
from ..errors import RemoteProtocolError
from .group import RankGroup

__all__ = ["ReplicaCheck", "parameter_hash", "resync"]

log = logging.getLogger("dblp")


@torch.no_grad()
def parameter_hash(parameters: Iterable[torch.Tensor]) -> int:
    """CRC-32C over the bytes of all parameters; equal replicas have equal hashes."""
    value = 0
    for parameter in parameters:
        here = parameter.detach().cpu().contiguous()
        view, _ = byte_view_of(here, what="parameter", writable=False, numeric=False)
        value = fastpath.crc32c(view, value)
    return value


class ReplicaCheck:
    """Compares the replicas every few steps."""

    def __init__(
        self,
        parameters: Sequence[torch.Tensor],
        group: RankGroup,
        *,
        every: int,
        resync: bool,
    ) -> None:
        """
        Args:
            parameters: of this replica, in the same order on all ranks.
            group: of the ranks.
            every: steps between two checks.
            resync: replicas may drift: measure how far, and copy rank 0's parameters to all.
                Otherwise a difference is an error.
        """
        self._parameters = parameters
        self._group = group
        self._every = every
        self._resync = resync

    def after(self, step: int) -> float | None:
        """Checks after step `step` (from 0) if it is time to.

        Returns:
            The largest difference of any parameter from rank 0's; None when nothing was checked.

        Raises:
            RemoteProtocolError: replicas differ that must not; names the ranks.
        """
        if (step + 1) % self._every:
            return None
        hashes = self._group.gather(parameter_hash(self._parameters))
        others = [rank for rank, value in enumerate(hashes) if value != hashes[0]]
        if not others:
            return 0.0
        if not self._resync:
            raise RemoteProtocolError(
                f"after {step + 1} steps the parameters of rank {', '.join(map(str, others))} "
                "differ from those of rank 0, though all gradients were the same: look for "
                "something that is not (data-dependent updates, other seeds, a partial checkpoint)"
            )
        drift = resync(self._parameters, self._group)
        log.info("replicas were up to %.3g apart after step %d and are equal again", drift, step)
        return drift


@torch.no_grad()
def resync(tensors: Sequence[torch.Tensor], group: RankGroup) -> float:
    """Copies rank 0's values to all ranks; collective.

    Returns:
        The largest difference from rank 0's that any element of any rank had.
    """
    drift = torch.zeros(1, dtype=torch.float64)
    for tensor in tensors:
        right = tensor.detach().cpu().contiguous().clone()
        group.broadcast(right)
        apart = (right.to(tensor.device) - tensor.detach()).abs()
        if apart.numel():
            drift = torch.maximum(drift, apart.max().cpu().double().reshape(1))
        tensor.detach().copy_(right)
    group.max(drift)
    return float(drift.item())
