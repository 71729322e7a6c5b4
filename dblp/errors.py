"""The errors that `dblp` raises.

Every message is one sentence that names what is wrong and says what to do about it.

What has ended raises its error in every later call, `with_traceback(None)`: an error that is raised
again would otherwise keep the frames of all callers before, and the gradients in them.
"""

from __future__ import annotations

__all__ = [
    "ConfigError",
    "DBLPError",
    "LocalProtocolError",
    "PeerLostError",
    "ProtocolError",
    "RemoteProtocolError",
    "RoundAbortedError",
    "RoundTimeoutError",
]


class DBLPError(Exception):
    """Base of all errors of this package."""


class ConfigError(DBLPError, ValueError):
    """A setting cannot be used: an option, an argument or an environment variable."""


class ProtocolError(DBLPError):
    """One of the two endpoints broke the protocol."""


class LocalProtocolError(ProtocolError):
    """This side used the protocol wrongly, such as sending a round that is open already."""


class RemoteProtocolError(ProtocolError):
    """The peer sent what it must not send, or buffers of the ranks do not match."""


class PeerLostError(DBLPError, ConnectionError):
    """A peer is gone: its connection broke or it has been silent for too long."""


class RoundTimeoutError(DBLPError, TimeoutError):
    """A round did not reach its bound before the deadline.

    `report` is the `RoundReport` of the round as far as it got, or None when there is none.
    """

    def __init__(self, message: str = "", report: object | None = None) -> None:
        super().__init__(message)
        self.report = report

    def __reduce__(self) -> tuple[type[RoundTimeoutError], tuple[str, object | None]]:
        """Keeps the report when the error crosses a process boundary."""
        return type(self), (str(self), self.report)


class RoundAbortedError(DBLPError):
    """The round ended without a result, because another rank failed or the session was closed."""
