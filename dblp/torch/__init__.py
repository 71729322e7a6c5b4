"""PyTorch: `dblp.torch.register(ddp_model)`, or `GradientExchange` in loops of your own.

Needs torch, which `import dblp` does not: `pip install dblp[torch]`.
"""

from .engine import StepReport
from .exchange import GradientExchange
from .hook import dblp_hook, register
from .options import ExchangeOptions
from .state import DBLPState

__all__ = [
    "DBLPState",
    "ExchangeOptions",
    "GradientExchange",
    "StepReport",
    "dblp_hook",
    "register",
]
