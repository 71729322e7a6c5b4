"""How a flat buffer is cut into chunks (paper, Section IV-B)."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..errors import LocalProtocolError

__all__ = ["Bytes", "ChunkLayout", "byte_view"]

Bytes = bytes | bytearray | memoryview
"""What `byte_view` accepts by type; at run time any contiguous buffer, such as a numpy array."""


@dataclass(frozen=True, slots=True)
class ChunkLayout:
    """`nbytes` bytes in chunks of `chunk_bytes`; only the last may be shorter."""

    nbytes: int
    """Size of the buffer in bytes, 0 or more."""
    chunk_bytes: int
    """Payload bytes of one datagram."""
    count: int = field(init=False)
    """Number of chunks; 0 for an empty buffer."""

    def __post_init__(self) -> None:
        if self.nbytes < 0 or self.chunk_bytes <= 0:
            raise LocalProtocolError(
                f"a buffer of {self.nbytes} bytes cannot be cut into chunks of {self.chunk_bytes} "
                "bytes: use at least 0 and 1"
            )
        object.__setattr__(self, "count", -(-self.nbytes // self.chunk_bytes))

    def span(self, index: int) -> tuple[int, int]:
        """First byte of chunk `index` and the byte after its last."""
        assert 0 <= index < self.count, (index, self.count)
        start = index * self.chunk_bytes
        return start, min(start + self.chunk_bytes, self.nbytes)


def byte_view(buffer: Bytes) -> memoryview:
    """`buffer` as a flat memoryview of bytes; `LocalProtocolError` when it is not contiguous."""
    view = memoryview(buffer)
    if not view.c_contiguous:
        raise LocalProtocolError("the buffer is not contiguous: pass a contiguous copy of it")
    if view.nbytes == 0:  # memoryview.cast refuses a zero in the shape
        return memoryview(b"" if view.readonly else bytearray())
    return view if view.format == "B" and view.ndim == 1 else view.cast("B")
