"""Bounded-loss gradient transport that follows the training phase (DBLP)."""

from .collective.base import Collective, ExchangeReport
from .collective.listener import Listener
from .collective.mesh import Mesh
from .collective.peer import Peer
from .collective.server import ParameterServer
from .collective.worker import AllReduceReport, Worker
from .config import TransportConfig
from .congestion import AdaptiveWindow, FixedRate, Unpaced
from .deadline import Deadline
from .errors import (
    ConfigError,
    DBLPError,
    LocalProtocolError,
    PeerLostError,
    ProtocolError,
    RemoteProtocolError,
    RoundAbortedError,
    RoundTimeoutError,
)
from .fastpath import FASTPATH
from .faults import GilbertElliott, Impairment
from .phase import Decision, FixedTolerance, GradientNormPolicy, Regime, Schedule, TolerancePolicy
from .stats import RoundReport
from .tolerance import Tolerance

__version__ = "0.1.0"

__all__ = [
    "FASTPATH",
    "AdaptiveWindow",
    "AllReduceReport",
    "Collective",
    "ConfigError",
    "DBLPError",
    "Deadline",
    "Decision",
    "ExchangeReport",
    "FixedRate",
    "FixedTolerance",
    "GilbertElliott",
    "GradientNormPolicy",
    "Impairment",
    "Listener",
    "LocalProtocolError",
    "Mesh",
    "ParameterServer",
    "Peer",
    "PeerLostError",
    "ProtocolError",
    "Regime",
    "RemoteProtocolError",
    "RoundAbortedError",
    "RoundReport",
    "RoundTimeoutError",
    "Schedule",
    "Tolerance",
    "TolerancePolicy",
    "TransportConfig",
    "Unpaced",
    "Worker",
    "__version__",
]
