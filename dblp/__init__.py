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
from .phase import (
    AccordionPolicy,
    AnyCritical,
    Decision,
    FixedTolerance,
    GradientNormPolicy,
    LearningRateDecay,
    Manual,
    Regime,
    Schedule,
    TolerancePolicy,
)
from .stats import RoundReport
from .tolerance import Tolerance

__version__ = "0.1.0"

__all__ = [
    "FASTPATH",
    "AccordionPolicy",
    "AdaptiveWindow",
    "AllReduceReport",
    "AnyCritical",
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
    "LearningRateDecay",
    "Listener",
    "LocalProtocolError",
    "Manual",
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
