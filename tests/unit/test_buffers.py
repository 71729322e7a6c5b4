"""One view of everything that holds numbers."""

from __future__ import annotations

import array as std_array
from typing import Any

import numpy as np
import pytest

from dblp.buffers import byte_view_of
from dblp.errors import LocalProtocolError


def view(array: Any, *, writable: bool = True, numeric: bool = True) -> tuple[memoryview, str]:
    return byte_view_of(array, what="grad", writable=writable, numeric=numeric)


@pytest.mark.parametrize(
    ("dtype", "averaged"),
    [
        ("float16", "float16"),
        ("float32", "float32"),
        ("float64", "float64"),
        ("complex64", "float32"),
        ("complex128", "float64"),
    ],
)
def test_arrays_share_their_memory(dtype: str, averaged: str) -> None:
    array = np.zeros((3, 5), dtype)
    data, name = view(array)
    assert name == averaged
    assert data.nbytes == array.nbytes
    assert (data.format, data.ndim, data.readonly) == ("B", 1, False)
    data[:] = np.full(15, 2, dtype).tobytes()
    assert (array == 2).all()


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint64", "float16", "complex64", "S3", "M8[s]"])
def test_every_dtype_can_be_sent(dtype: str) -> None:
    array = np.zeros(4, dtype)
    data, name = view(array, numeric=False)
    assert name == str(array.dtype)
    assert data.nbytes == array.nbytes


@pytest.mark.parametrize("dtype", ["bool", "int8", "int64", "uint8", "longdouble", "S3", "M8[s]"])
def test_most_dtypes_have_no_mean(dtype: str) -> None:
    with pytest.raises(LocalProtocolError, match="has no mean: convert it to one of float16"):
        view(np.zeros(4, dtype))


def test_a_number_in_an_array() -> None:
    number = np.array(1.5)
    data, _ = view(number)
    data[:] = np.array(2.5).tobytes()
    assert number == 2.5


@pytest.mark.parametrize("empty", [np.zeros(0, np.float32), np.zeros((3, 0, 2), np.float32)])
def test_nothing(empty: Any) -> None:
    empty.setflags(write=False)
    data, name = view(empty)
    assert (data.nbytes, name) == (0, "float32")


def test_other_buffers() -> None:
    floats = std_array.array("f", [1, 2, 3])
    data, name = view(floats)
    assert (data.nbytes, name) == (12, "float32")
    data[:4] = bytes(4)
    assert floats[0] == 0
    assert view(bytearray(7), numeric=False)[0].nbytes == 7
    assert view(b"1234567", writable=False, numeric=False)[0] == b"1234567"
    assert view(memoryview(b"abcdef")[2:4], writable=False, numeric=False)[0] == b"cd"


def test_a_slice_of_an_array_is_fine_while_it_is_contiguous() -> None:
    array = np.zeros((4, 6), np.float32)
    data, _ = view(array[1:3])
    data[:] = np.ones(12, np.float32).tobytes()
    assert array.sum() == 12
    with pytest.raises(LocalProtocolError, match="contiguous"):
        view(array[:, 1:3])


def test_what_is_read_only_can_be_sent_but_not_written() -> None:
    array = np.ones(3, np.float32)
    array.setflags(write=False)
    assert view(array, writable=False)[0].readonly
    for frozen in (array, b"1234"):
        with pytest.raises(LocalProtocolError, match="grad is read-only"):
            view(frozen, numeric=False)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (np.ones(9, np.float32)[::3], "numpy.ascontiguousarray"),
        (np.ones((2, 3), np.float32).T, "contiguous"),
        (np.ones(9, np.float32)[::-1], "contiguous"),
        (memoryview(bytes(8))[::2], "contiguous"),
        (np.array([None]), "Python objects"),
        (np.ones(3, ">f8"), "byte order"),
        ([1.0], "list"),
        ("abc", "str"),
        (1.0, "float"),
        (None, "NoneType"),
    ],
    ids=repr,
)
def test_what_cannot_be_viewed(wrong: Any, words: str) -> None:
    with pytest.raises(LocalProtocolError, match=words):
        view(wrong)


@pytest.mark.parametrize(
    ("dtype", "averaged"),
    [
        ("float16", "float16"),
        ("bfloat16", "bfloat16"),
        ("float32", "float32"),
        ("float64", "float64"),
        ("complex64", "float32"),
        ("complex128", "float64"),
    ],
)
def test_tensors_share_their_memory(dtype: str, averaged: str) -> None:
    torch = pytest.importorskip("torch")
    tensor = torch.zeros(3, 5, dtype=getattr(torch, dtype), requires_grad=True)
    data, name = view(tensor)
    assert name == averaged
    assert data.nbytes == tensor.numel() * tensor.element_size()
    ones = torch.ones(15, dtype=tensor.dtype)
    data[:] = ones.view(torch.uint8).numpy().tobytes()
    assert bool((tensor == 1).all())


def test_empty_tensors_and_numbers() -> None:
    torch = pytest.importorskip("torch")
    assert view(torch.zeros(0))[0].nbytes == 0
    assert view(torch.zeros(3, 0, dtype=torch.complex64)) == (memoryview(b""), "float32")
    number = torch.tensor(1.0)
    view(number)[0][:] = bytes(4)
    assert number == 0


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda torch: torch.eye(3).to_sparse(), r"sparse.*to_dense"),
        (lambda torch: torch.eye(3).to_sparse_csr(), "sparse"),
        (lambda torch: torch.ones(4, 4)[:, 1], r"contiguous.*grad\.contiguous"),
        (lambda torch: torch.ones(2, device="meta"), r"meta.*grad\.cpu"),
        (lambda torch: torch.ones(2, dtype=torch.int16), "int16"),
        (lambda torch: torch.ones(2, dtype=torch.complex64).conj(), "resolve_conj"),
        (lambda torch: torch.ones(1, dtype=torch.complex64).conj().imag, "resolve_neg"),
    ],
    ids=["coo", "csr", "strided", "device", "integer", "conjugate", "negative"],
)
def test_tensors_that_cannot_be_averaged_in_place(make: Any, words: str) -> None:
    torch = pytest.importorskip("torch")
    with pytest.raises(LocalProtocolError, match=words):
        view(make(torch))
