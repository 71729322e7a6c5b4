"""Processes that run all-reduces together: what the star, the ring and the mesh have in common."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from bench.transport.peers.role import PeerError, PeerTimeoutError, Role


class Team:
    """Roles that stay up between requests, so that their rounds can be interleaved with others'.

    A team that fails or does not answer in time is ended: what it goes on with would disturb who is
    measured next, and a late answer would be taken for the answer to the next request.
    """

    patience_s = 2.0
    """How long a role may take to end by itself."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._roles: list[Role] = []

    def ask_all(
        self, roles: Sequence[Role], requests: Sequence[Mapping[str, Any]], limit_s: float
    ) -> list[dict[str, Any]]:
        """Every role's answer to its request.

        Raises `PeerTimeoutError` when they do not all come within `limit_s`, `PeerError` when a
        role fails or the team was ended before; it is ended then.
        """
        if not self._roles:
            raise PeerError(
                f"{self.name}: was ended, because it had failed or not answered in time"
            )
        ends = time.monotonic() + limit_s
        try:
            for role, request in zip(roles, requests, strict=True):
                role.tell(request)
            return [role.hear(max(ends - time.monotonic(), 0.0)) for role in roles]
        except PeerTimeoutError as error:
            self.close()
            text = f"{self.name}: not finished in {limit_s:.0f} s"
            raise PeerTimeoutError(text, limit_s) from error
        except PeerError:
            self.close()
            raise

    def close(self) -> None:
        """End the processes, the last first. Safe to call twice."""
        for role in reversed(self._roles):
            role.close(patience_s=self.patience_s)
        self._roles.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
