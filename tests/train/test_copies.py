"""Copies whose memory is kept."""

from __future__ import annotations

import torch

from dblp.torch.copies import KeptCopies


def test_a_key_keeps_its_memory_until_it_does_not_fit() -> None:
    copies: KeptCopies[int] = KeptCopies()
    first = copies.copy_of(1, torch.arange(10.0))
    place = first.data_ptr()
    assert first.tolist() == list(range(10))
    assert copies.copy_of(1, torch.ones(10)).data_ptr() == place
    assert first.tolist() == [1.0] * 10
    assert copies.copy_of(2, torch.zeros(10)).data_ptr() != place
    for other in (torch.ones(5), torch.ones(10, dtype=torch.float64)):
        copied = copies.copy_of(1, other)
        assert torch.equal(copied, other) and copied.dtype == other.dtype


def test_a_copy_may_have_another_dtype_and_none_is_a_view() -> None:
    copies: KeptCopies[str] = KeptCopies()
    source = torch.full((4,), 1.001)
    copied = copies.copy_of("a", source, torch.bfloat16)
    assert torch.equal(copied, source.to(torch.bfloat16))
    same = copies.copy_of("b", source)
    source.zero_()
    assert same.tolist() != source.tolist()


def test_memory_is_given_back() -> None:
    copies: KeptCopies[str] = KeptCopies()
    for key in ("a", "b", "ab"):
        copies.copy_of(key, torch.ones(3))
    copies.forget(lambda key: "a" in key)
    assert len(copies) == 1
