"""Datagrams, checksums and energies: what every chunk costs before the network."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.micro.conftest import gradient
from dblp import wire

CHUNK_BYTES = wire.chunk_bytes_for_mtu(1500)
TAG = 0x5EED5EED

CHECKSUM_SIZES = {"full": (24, 1448, 65_536, 4_000_000), "smoke": (24, 1448, 3000)}
SOURCES = Path(__file__).parents[2] / "dblp" / "csrc"
BACKENDS = ("portable", "sse4.2", "vpclmulqdq")


@pytest.mark.sizes(full=(64, CHUNK_BYTES, 8_948), smoke=(64, CHUNK_BYTES))
def test_pack_datagram(benchmark: Any, moves: Any, fastpath: Any, nbytes: int) -> None:
    payload = bytes(nbytes)
    moves(nbytes)
    packed = benchmark(fastpath.pack_datagram, wire.KIND_DATA, 0, 1, 2, 3, 4, TAG, payload)
    assert len(packed) == wire.HEADER_BYTES + nbytes


@pytest.mark.sizes(full=(64, CHUNK_BYTES, 8_948), smoke=(64, CHUNK_BYTES))
def test_parse_datagram(benchmark: Any, moves: Any, fastpath: Any, nbytes: int) -> None:
    datagram = fastpath.pack_datagram(wire.KIND_DATA, 0, 1, 2, 3, 4, TAG, bytes(nbytes))
    moves(nbytes)
    assert benchmark(fastpath.parse_datagram, datagram)[7] == bytes(nbytes)


@pytest.mark.sizes(**CHECKSUM_SIZES)
def test_crc32c(benchmark: Any, moves: Any, fastpath: Any, nbytes: int) -> None:
    """The one that run-time dispatch has chosen on this processor; its name is in the JSON."""
    data = np.random.default_rng(1).bytes(nbytes)
    moves(nbytes)
    benchmark.extra_info["backend"] = fastpath.crc32c_backend()
    assert benchmark(fastpath.crc32c, data) == fastpath.crc32c(data)


@pytest.fixture(scope="module")
def checksum_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Any]:
    """name of a backend → its C function; the choices that dispatch has, side by side."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    library = tmp_path_factory.mktemp("crc32c") / "backends.so"
    source = Path(__file__).with_name("crc32c_backends.c")
    command = [compiler, "-O3", "-shared", "-fPIC", f"-I{SOURCES}", "-o", library, source]
    subprocess.run(command, check=True, timeout=60)
    loaded = ctypes.CDLL(str(library))
    loaded.setup()

    def find(name: str) -> Any:
        index = BACKENDS.index(name)
        if not loaded.supported(index):
            pytest.skip(f"this processor has no {name}")
        checksum = loaded.checksum
        checksum.restype = ctypes.c_uint32
        checksum.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t]
        return lambda data: checksum(index, data, len(data))

    return find


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.sizes(**CHECKSUM_SIZES)
def test_crc32c_backend(
    benchmark: Any, moves: Any, checksum_of: Callable[[str], Any], backend: str, nbytes: int
) -> None:
    """Called through ctypes, which adds about a microsecond to every call."""
    from dblp import fastpath

    checksum = checksum_of(backend)
    data = np.random.default_rng(1).bytes(nbytes)
    moves(nbytes)
    assert benchmark(checksum, data) == fastpath.crc32c(data)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64"])
@pytest.mark.sizes(full=(200_000, 20_000_000), smoke=(4_000,))
def test_squared_norm(benchmark: Any, moves: Any, fastpath: Any, dtype: str, nbytes: int) -> None:
    moves(nbytes)
    assert benchmark(fastpath.squared_norm, gradient(nbytes, dtype), dtype) > 0


@pytest.mark.sizes(full=(200_000, 20_000_000), smoke=(4_000,))
def test_chunk_energy(benchmark: Any, moves: Any, fastpath: Any, nbytes: int) -> None:
    moves(nbytes)
    energy = benchmark(fastpath.chunk_energy, gradient(nbytes), "float32", CHUNK_BYTES)
    assert len(energy) == -(-nbytes // CHUNK_BYTES)
