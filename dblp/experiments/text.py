"""Text as token ids: WikiText-2 by words, and Python's own source by bytes."""

from __future__ import annotations

import functools
import sysconfig
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import torch

from ..errors import ConfigError
from .images import SOURCES, require_directory
from .settings import Workload

__all__ = ["Text", "text"]

UNKNOWN = "<unk>"
SOURCE_BYTES = 400_000


@dataclass(frozen=True)
class Text:
    """Token ids, int64 (tokens,)."""

    train: torch.Tensor
    test: torch.Tensor
    vocabulary: int
    """Number of different tokens."""


@functools.lru_cache(maxsize=1)  # the next cell of a process most often has the same
def text(workload: Workload, data: str | None) -> Text:
    """The text of a workload, cut to what it uses.

    Args:
        data: directory with `wikitext-2`; not used for Python's source.

    Raises:
        ConfigError: it is missing, with where to get it.
    """
    if workload.data == "source":
        train, test, vocabulary = _python_source()
    else:
        train, test, vocabulary = _wikitext(
            require_directory(data, workload.data), workload.vocabulary
        )
    return Text(train[: workload.samples], test[: workload.test_samples], vocabulary)


def _wikitext(directory: Path, limit: int | None) -> tuple[torch.Tensor, torch.Tensor, int]:
    nested = directory / "wikitext-2"
    root = nested if nested.is_dir() else directory
    files = [root / f"wiki.{part}.tokens" for part in ("train", "test")]
    missing = [path.name for path in files if not path.is_file()]
    if missing:
        raise ConfigError(f"{root} lacks {', '.join(missing)}: {SOURCES['wikitext2']}")
    train, test = (_words(path) for path in files)
    counts = Counter(train)
    most = [word for word, _ in counts.most_common(limit)]
    if UNKNOWN not in most:
        most.append(UNKNOWN)
    ids = {word: number for number, word in enumerate(most)}
    unknown = ids[UNKNOWN]
    as_ids = [torch.tensor([ids.get(word, unknown) for word in part]) for part in (train, test)]
    return as_ids[0], as_ids[1], len(ids)


def _words(path: Path) -> list[str]:
    """The words of a file; a line ends with <eos>, as in the published results."""
    return path.read_text(encoding="utf-8").replace("\n", " <eos> ").split()


def _python_source() -> tuple[torch.Tensor, torch.Tensor, int]:
    """Bytes of Python's standard library: no WikiText, but there wherever Python is."""
    source = b""
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        source += path.read_bytes()
        if len(source) >= SOURCE_BYTES:
            break
    cut = len(source) * 9 // 10
    ids = torch.frombuffer(bytearray(source), dtype=torch.uint8).long()
    return ids[:cut], ids[cut:], 256
