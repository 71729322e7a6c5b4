"""Which server averages which part of a buffer."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import ConfigError

__all__ = ["Shard", "ShardPlan"]


@dataclass(frozen=True, slots=True)
class Shard:
    """One server's part of a buffer."""

    server: int
    """Rank of the server."""
    start: int
    """First byte."""
    stop: int
    """Byte after the last one."""


@dataclass(frozen=True, slots=True)
class ShardPlan:
    """Cuts buffers on chunk boundaries into one shard per server.

    The shards cover every byte once, differ by at most one chunk, and start with another server in
    every stream, so that small buffers of different streams go to different servers.  All ranks
    get the same shards from the same size and stream: nothing is negotiated.
    """

    servers: int
    """Number of servers, ranks 0 … servers-1."""
    chunk_bytes: int
    """Payload bytes per datagram, the same on all paths."""

    def __post_init__(self) -> None:
        if self.servers < 1 or self.chunk_bytes < 1:
            raise ConfigError(
                f"a buffer cannot be cut for {self.servers} servers into chunks of "
                f"{self.chunk_bytes} bytes: use at least 1 of each"
            )

    def shards(self, nbytes: int, stream: int) -> tuple[Shard, ...]:
        """The shards of a buffer of `nbytes` bytes, in buffer order; empty ones are left out."""
        chunks = -(-nbytes // self.chunk_bytes)
        share, rest = divmod(chunks, self.servers)
        cut: list[Shard] = []
        start = 0
        for place in range(min(self.servers, chunks)):
            wanted = (share + (place < rest)) * self.chunk_bytes
            stop = min(start + wanted, nbytes)
            cut.append(Shard((stream + place) % self.servers, start, stop))
            start = stop
        return tuple(cut)
