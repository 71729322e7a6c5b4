"""The pool of receive and result buffers."""

from __future__ import annotations

import pytest

from dblp.collective.buffers import ALIGNMENT_BYTES, BufferPool


@pytest.mark.parametrize("touched", [True, False])
@pytest.mark.parametrize("nbytes", [0, 1, 4095, 4096, 1_000_003])
def test_a_buffer_is_writable_aligned_and_of_the_asked_size(nbytes: int, touched: bool) -> None:
    buffer = BufferPool().acquire(nbytes, touched=touched)
    assert buffer.nbytes == nbytes
    assert buffer.flags.writeable and buffer.flags.c_contiguous
    assert nbytes == 0 or buffer.ctypes.data % ALIGNMENT_BYTES == 0


def test_a_released_buffer_is_used_again() -> None:
    pool = BufferPool()
    first = pool.acquire(1000)
    pool.release(first)
    assert pool.acquire(1000) is first
    assert pool.allocations == 1


def test_buffers_in_use_are_never_shared() -> None:
    pool = BufferPool()
    buffers = [pool.acquire(1000) for _ in range(5)]
    assert len({buffer.ctypes.data for buffer in buffers}) == 5
    assert pool.in_use == 5 and pool.in_use_bytes == 5000


def test_sizes_are_kept_apart() -> None:
    pool = BufferPool()
    pool.release(pool.acquire(1000))
    assert pool.acquire(999).nbytes == 999
    assert pool.allocations == 2


def test_releasing_twice_is_a_bug() -> None:
    pool = BufferPool()
    buffer = pool.acquire(10)
    pool.release(buffer)
    with pytest.raises(AssertionError, match="twice"):
        pool.release(buffer)


def test_an_abandoned_size_is_given_back() -> None:
    pool = BufferPool(retain_bytes=0)
    for nbytes in range(1000, 1100):
        buffer = pool.acquire(nbytes)
        pool.release(buffer)
    assert pool.idle_bytes <= 2 * 1100


def test_two_alternating_sets_are_both_kept() -> None:
    pool = BufferPool(retain_bytes=0)
    for _ in range(10):
        for nbytes in (1000, 1500):
            taken = [pool.acquire(nbytes) for _ in range(4)]
            for buffer in taken:
                pool.release(buffer)
    assert pool.allocations == 8


def test_clear_forgets_everything() -> None:
    pool = BufferPool()
    pool.acquire(10)
    pool.release(pool.acquire(20))
    pool.clear()
    assert pool.in_use == 0 and pool.idle_bytes == 0


def test_untouched_buffers_are_kept_apart() -> None:
    """What is used little does not become what is used as a whole; the reverse is no loss."""
    pool = BufferPool()
    source, mean = pool.acquire(1000, touched=False), pool.acquire(1000)
    pool.release(mean)
    pool.release(source)
    assert pool.acquire(1000) is mean
    assert pool.acquire(1000, touched=False) is source
    pool.release(mean)
    assert pool.acquire(1000, touched=False) is mean
    assert pool.allocations == 2
