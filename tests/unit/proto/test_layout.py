"""Cutting buffers into chunks."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dblp.errors import LocalProtocolError
from dblp.proto import ChunkLayout, byte_view


@given(st.integers(0, 10_000), st.integers(1, 999))
def test_spans_tile_the_buffer(nbytes: int, chunk_bytes: int) -> None:
    layout = ChunkLayout(nbytes, chunk_bytes)
    end = 0
    for index in range(layout.count):
        start, stop = layout.span(index)
        assert start == end and 0 < stop - start <= chunk_bytes
        end = stop
    assert end == nbytes


def test_an_empty_buffer_has_no_chunks() -> None:
    assert ChunkLayout(0, 1448).count == 0


@pytest.mark.parametrize(("nbytes", "chunk_bytes"), [(-1, 8), (8, 0)])
def test_impossible_layouts_are_refused(nbytes: int, chunk_bytes: int) -> None:
    with pytest.raises(LocalProtocolError, match="cannot be cut"):
        ChunkLayout(nbytes, chunk_bytes)


def test_byte_view_of_arrays() -> None:
    array = np.zeros((3, 4), np.float32)
    view = byte_view(array)
    view[0] = 255
    assert view.nbytes == 48 and view.format == "B" and array.view(np.uint8)[0, 0] == 255
    assert byte_view(np.zeros(0, np.float64)).nbytes == 0
    assert not byte_view(np.zeros(0, np.float64)).readonly
    with pytest.raises(LocalProtocolError, match="not contiguous"):
        byte_view(array[:, ::2])
