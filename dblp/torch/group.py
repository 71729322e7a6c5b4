"""The ranks' own gloo group: for addresses, agreement and everything else that is small.

It is built by hand on the job's store, under a key that holds a nonce.  `dist.new_group` either
needs all ranks of the job, or names the group after the number of groups that a rank happens to be
in, which differs between ranks, and uses a name again once its group is gone, with the addresses
that the store still has under it.
"""

from __future__ import annotations

import pickle
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from ..errors import PeerLostError
from ..io.interfaces import IFNAME_VARIABLE

__all__ = ["RankGroup", "lost"]


class RankGroup:
    """Small collectives among the ranks of one exchange.  All of them raise PeerLostError when a
    rank does not take part within the time limit."""

    def __init__(self, name: str, rank: int, world: int, *, host: str, timeout_s: float) -> None:
        """Connects; collective.

        Args:
            name: equal on all ranks, and never used before.
            rank, world: place in the group and its size.
            host: address of this host that all ranks can reach.
            timeout_s: limit of every call, in seconds.
        """
        self.rank = rank
        self.world = world
        gloo: Any = dist.ProcessGroupGloo
        options = gloo._Options()
        options._timeout = timedelta(seconds=timeout_s)
        options._devices = [gloo.create_device(hostname=host)]
        c10d: Any = dist.distributed_c10d
        store = c10d.PrefixStore(name, c10d._get_default_store())
        try:
            self._gloo: Any = gloo(store, rank, world, options)
        except RuntimeError as error:
            raise PeerLostError(
                f"the ranks cannot reach each other, this one at {host} ({_first_line(error)}): "
                f"look at the logs of the other ranks and at firewalls, or name the right "
                f"interface in {IFNAME_VARIABLE}"
            ) from error

    def sum(self, tensor: torch.Tensor) -> None:
        """Replaces `tensor` by its sum over the ranks."""
        self._reduce(tensor, dist.ReduceOp.SUM)

    def max(self, tensor: torch.Tensor) -> None:
        """Replaces `tensor` by its largest values over the ranks."""
        self._reduce(tensor, dist.ReduceOp.MAX)

    def mean(self, tensor: torch.Tensor) -> None:
        """Replaces `tensor` by its mean over the ranks."""
        self.sum(tensor)
        tensor.div_(self.world)

    def _reduce(self, tensor: torch.Tensor, operation: Any) -> None:
        here = tensor.detach().cpu().contiguous()
        options = dist.AllreduceOptions()
        options.reduceOp = operation
        self._wait(self._gloo.allreduce([here], options))
        if here.data_ptr() != tensor.data_ptr():
            tensor.detach().copy_(here)

    def broadcast(self, tensor: torch.Tensor) -> None:
        """Replaces `tensor`, in CPU memory and contiguous, by that of rank 0."""
        options = dist.BroadcastOptions()
        options.rootRank = 0
        options.rootTensor = 0
        self._wait(self._gloo.broadcast([tensor], options))

    def gather(self, value: Any) -> list[Any]:
        """The values of all ranks, by rank; they are pickled."""
        data = torch.frombuffer(bytearray(pickle.dumps(value)), dtype=torch.uint8)
        sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(self.world)]
        self._wait(self._gloo.allgather([sizes], [torch.tensor([data.numel()])]))
        longest = max(int(size.item()) for size in sizes)
        padded = torch.zeros(longest, dtype=torch.uint8)
        padded[: data.numel()] = data
        parts = [torch.empty_like(padded) for _ in range(self.world)]
        self._wait(self._gloo.allgather([parts], [padded]))
        return [
            pickle.loads(part[: int(size.item())].numpy().tobytes())
            for part, size in zip(parts, sizes, strict=True)
        ]

    def close(self) -> None:
        """Ends its thread; local.  Not left to the exit of the interpreter, during which gloo's
        thread may drop the last tensor that it has seen, and abort the process."""
        self._gloo = None

    def _wait(self, work: Any) -> None:
        try:
            work.wait()
        except RuntimeError as error:
            raise lost(error) from error


def lost(error: BaseException) -> PeerLostError:
    """What a failure of the process group means."""
    return PeerLostError(
        f"the process group failed ({_first_line(error)}): a rank is gone or stuck, look at the "
        "logs of the other ranks"
    )


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)
