"""Errors name the rank that they are about."""

from __future__ import annotations

from ..errors import DBLPError, PeerLostError

__all__ = ["error_of"]


def error_of(rank: int, error: DBLPError) -> DBLPError:
    """`error` of the connection to `rank`, with its name in it.

    A loss that names a rank stays as it is: it is that rank's, or `rank` tells of another one that
    was lost first.
    """
    reason = str(error)
    if isinstance(error, PeerLostError):
        return PeerLostError(reason if "rank " in reason else f"rank {rank} is lost: {reason}")
    return error if f"rank {rank}" in reason else type(error)(f"rank {rank}: {error}")
