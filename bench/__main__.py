"""`python -m bench list | run CASE [--smoke] [--json FILE]`."""

from __future__ import annotations

import argparse
import importlib
import pkgutil
import sys
import time
from pathlib import Path

from bench.goals import GOALS
from bench.harness import RESULTS, CaseResult, Settings, print_result, write_result
from bench.kernel import LabError
from bench.transport.peers.role import PeerError

_PACKAGES = ("bench.transport.cases", "bench.training.cases")


def cases() -> dict[str, str]:
    """Name of every case and the module that holds it."""
    found = {}
    for package in _PACKAGES:
        try:
            paths = importlib.import_module(package).__path__
        except ModuleNotFoundError as error:
            if error.name is None or not package.startswith(error.name):
                raise
            continue
        for module in pkgutil.iter_modules(paths):
            if not module.name.startswith("_"):
                found[module.name] = f"{package}.{module.name}"
    return found


def _list() -> int:
    for name, module in cases().items():
        lines = (importlib.import_module(module).__doc__ or "").strip().splitlines()
        print(f"{name:<12} {lines[0] if lines else ''}")
    return 0


def _run(name: str, settings: Settings, path: Path) -> int:
    known = cases()
    if name not in known:
        print(f"there is no case {name!r}: choose from {', '.join(known)}", file=sys.stderr)
        return 2
    result = CaseResult()
    started = time.monotonic()
    try:
        importlib.import_module(known[name]).run(settings, result)
    except (LabError, PeerError) as error:
        result.failures.append(f"ended early: {error}")
    result.notes.append(f"took {time.monotonic() - started:.0f} s")
    write_result(path, name, result, settings)
    print_result(name, result, GOALS)
    print(f"written to {path}")
    return 1 if result.failures else 0


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="name the cases")
    run = commands.add_parser("run", help="run one case")
    run.add_argument("case")
    run.add_argument("--smoke", action="store_true", help="tiny sizes: does it work at all?")
    run.add_argument("--json", type=Path, help="result file (default bench/results/CASE.json)")
    options = parser.parse_args(arguments)
    if options.command == "list":
        return _list()
    settings = Settings(smoke=options.smoke)
    path = options.json or RESULTS / f"{options.case}{'-smoke' if options.smoke else ''}.json"
    return _run(options.case, settings, path)


if __name__ == "__main__":
    sys.exit(main())
