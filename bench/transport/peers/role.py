"""One side of a peer as a process of its own, driven by JSON lines on its pipes."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from bench.netlab import NetworkLab

REPOSITORY = Path(__file__).resolve().parents[3]


class PeerError(RuntimeError):
    """A side of a peer ended or answered nonsense; the message carries its last words."""


class PeerTimeoutError(PeerError):
    """A side did not answer in time. `waited_s` is how long it was waited for, in seconds."""

    def __init__(self, message: str, waited_s: float) -> None:
        super().__init__(message)
        self.waited_s = waited_s


def python_command(module: str, *arguments: str) -> list[str]:
    """The command line that runs `module` of this repository with this interpreter."""
    return [sys.executable, "-m", module, *arguments]


class Role:
    """A process on `host` of `lab` (or right here) that answers requests line by line."""

    def __init__(
        self,
        lab: NetworkLab | None,
        host: int,
        command: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  (lives as long as the process)
        self._name = f"{Path(command[-1]).name if len(command) == 1 else ' '.join(command[:4])}"
        path = os.pathsep.join(filter(None, [str(REPOSITORY), os.environ.get("PYTHONPATH")]))
        options: dict[str, Any] = {
            "stdin": subprocess.PIPE,
            "stdout": subprocess.PIPE,
            "stderr": self._errors,
            "cwd": REPOSITORY,
            "env": {**os.environ, "PYTHONPATH": path, **(env or {})},
        }
        if lab is None:
            self._process = subprocess.Popen(command, **options)
        else:
            self._process = lab.popen(host, command, **options)
        self._unread = b""

    @property
    def pid(self) -> int:
        return self._process.pid

    def tell(self, request: Mapping[str, Any]) -> None:
        """Send one request without waiting for the answer."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError as error:
            raise PeerError(self._last_words()) from error

    def hear(self, timeout_s: float) -> dict[str, Any]:
        """The next answer. Raises `PeerTimeoutError`, or `PeerError` when the process has ended."""
        assert self._process.stdout is not None
        descriptor = self._process.stdout.fileno()
        started = time.monotonic()
        while b"\n" not in self._unread:
            left = started + timeout_s - time.monotonic()
            if left <= 0 or not select.select([descriptor], [], [], left)[0]:
                raise PeerTimeoutError(f"{self._name}: no answer in {timeout_s:.0f} s", timeout_s)
            data = os.read(descriptor, 1 << 16)
            if not data:
                raise PeerError(self._last_words())
            self._unread += data
        line, _, self._unread = self._unread.partition(b"\n")
        try:
            answer = json.loads(line)
        except ValueError as error:
            raise PeerError(f"{self._name}: answered {line[:80]!r}") from error
        if not isinstance(answer, dict) or "error" in answer:
            raise PeerError(f"{self._name}: {answer}")
        return answer

    def ask(self, request: Mapping[str, Any], timeout_s: float) -> dict[str, Any]:
        self.tell(request)
        return self.hear(timeout_s)

    def close(self, *, patience_s: float = 2.0) -> None:
        """Close its pipe, wait a little, then end it. Safe to call twice."""
        if self._process.stdin is not None and not self._process.stdin.closed:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.close()
        try:
            self._process.wait(timeout=patience_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._errors.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close(patience_s=2.0 if kind is None else 0.0)

    def _last_words(self) -> str:
        code = self._process.wait(timeout=5.0)
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        return f"{self._name}: ended with status {code}: {lines[-1] if lines else 'no message'}"


def address_of(lab: NetworkLab | None, host: int) -> str:
    return "127.0.0.1" if lab is None else lab.address(host)
