"""The one module that knows there are two fast paths: compiled, and the readable twin in Python.

`DBLP_FASTPATH=compiled` or `python` forces one; else the compiled one is used where it was built.
"""

import os
from typing import TYPE_CHECKING

from .errors import ConfigError

__all__ = [
    "FASTPATH", "IS_COMPILED", "HEADER_BYTES", "MAX_SLOTS", "EVENT", "QUIET", "BUDGET", "WAKE",
    "COUNTERS", "crc32c", "crc32c_backend", "pack_datagram", "parse_datagram", "bitmap_set",
    "bitmap_count", "bitmap_missing", "zero_missing", "squared_norm", "chunk_energy",
    "encode_runs", "decode_runs", "pack_classes", "order_of_classes", "gather_ranges", "add_ranges",
    "Reducer", "Channel", "pump", "probe_offload",
]  # fmt: skip

_forced = os.environ.get("DBLP_FASTPATH", "")
if _forced not in ("", "compiled", "python"):
    raise ConfigError(f"DBLP_FASTPATH is {_forced!r}: choose compiled or python, or unset it")

if TYPE_CHECKING:
    from ._fastpath import *  # both implement the stub
else:
    try:
        if _forced == "python":
            raise ImportError
        from . import _fastpath as _implementation
    except ImportError as _error:
        if _forced == "compiled":
            raise ConfigError(
                f"DBLP_FASTPATH is compiled, but the extension cannot be loaded ({_error}): "
                "build it with `make build`, or unset DBLP_FASTPATH"
            ) from _error
        from . import _fastpath_py as _implementation
    globals().update({_name: getattr(_implementation, _name) for _name in __all__[1:]})

FASTPATH = "compiled" if IS_COMPILED else "python"
"""Which one is loaded."""
