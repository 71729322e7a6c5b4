"""The protocol core, sans-IO: Algorithms 1 and 2 for one peer (see `Session`)."""

from .bitmap import ReceiveBitmap, decode_ranges
from .events import (
    Event,
    FallbackToReliable,
    OpenMismatch,
    Path,
    ReceiveFinished,
    RoundOffered,
    SendFinished,
)
from .layout import ChunkLayout, byte_view
from .order import energy_of, send_order
from .receiver import Receiver
from .sender import Sender
from .session import Session
from .states import ReceiverState, SenderState
from .zeros import ZeroChunks

__all__ = [
    "ChunkLayout",
    "Event",
    "FallbackToReliable",
    "OpenMismatch",
    "Path",
    "ReceiveBitmap",
    "ReceiveFinished",
    "Receiver",
    "ReceiverState",
    "RoundOffered",
    "SendFinished",
    "Sender",
    "SenderState",
    "Session",
    "ZeroChunks",
    "byte_view",
    "decode_ranges",
    "energy_of",
    "send_order",
]
