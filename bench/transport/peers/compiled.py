"""C programs of the benches: compiled on first use, kept outside the repository."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

from bench.transport.peers.role import PeerError

_FLAGS = ("-O2", "-std=gnu11", "-Wall", "-Wextra")


def compiled(source: Path) -> Path:
    """The program of `source`, compiled unless this very text was compiled before.

    Raises `PeerError` where there is no C compiler or the source does not compile.
    """
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if compiler is None:
        raise PeerError(f"{source.name} needs a C compiler: install gcc or set CC")
    text = source.read_bytes()
    key = hashlib.sha256(b"\0".join([text, compiler.encode(), *map(str.encode, _FLAGS)]))
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    program = base / "dblp-bench" / f"{source.stem}-{key.hexdigest()[:16]}"
    if not program.exists():
        program.parent.mkdir(parents=True, exist_ok=True)
        unfinished = program.with_suffix(f".{os.getpid()}")
        done = subprocess.run(
            [compiler, *_FLAGS, "-o", unfinished, source],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise PeerError(f"{source.name} does not compile: {done.stderr.strip()[:400]}")
        unfinished.replace(program)
    return program
