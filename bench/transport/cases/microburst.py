"""70 % loss for one round, at the paper's gradient sizes (Section V-B, Tables II and III).

The network itself drops 70 % of all UDP packets while the burst round is under way, both ways.
Fixed tolerance (the baseline), phase-adaptive tolerance, and phase-adaptive with a deadline take
turns, round for round the same positions of bursts, all outside the critical regime, as in the
paper. Uplink and downlink have the round's tolerance, as in the paper's Algorithms 3 and 4.
"""

from __future__ import annotations

import contextlib
import dataclasses
import random
import statistics
import time
from dataclasses import dataclass

from bench.harness import CaseResult, Chart, Distribution, Settings, ratio
from bench.kernel import touch_memory
from bench.netlab import NetworkLab, lab_unavailable
from bench.transport.cases import _network as network
from bench.transport.peers.dblp_peer import DblpStar, StarRounds, star_missing
from bench.transport.peers.role import PeerError

_BURST_PPM = 700_000
_LIMIT_S = 60.0
# After this long no further model starts: the case has to end within ten minutes.
_CASE_BUDGET_S = 420.0
# The first interval of the policy (10 rounds) is critical, and the norm is compared at its end.
_CALM_ROUNDS = 12
# dblp.Deadline() adapts to recent rounds.
_DEADLINE: dict[str, dict[str, float]] = {"deadline": {}}
_WARM_KEYS = ("warm_tail_ratio", "warm_mean_ratio")
_BASELINE, _ADAPTIVE, _WITH_DEADLINE = "fixed", "adaptive", "adaptive, deadline"


@dataclass(frozen=True)
class _Model:
    """A gradient size of the paper, with its tolerances."""

    name: str
    parameters: int
    low: str
    high: str
    rounds: int
    bursts: int
    offloads: bool = True
    """On: one lost packet is up to 64 KiB. Off: every chunk is lost or not by itself."""


_MODELS = (
    _Model("EfficientNetB0, 5 M", 5_000_000, "0.8%", "40.8%", 150, 4),
    _Model("EfficientNetB0, 5 M, MTU", 5_000_000, "0.8%", "40.8%", 60, 3, offloads=False),
    _Model("ResNet50, 25 M", 25_000_000, "2.4%", "42.4%", 50, 3),
    _Model("AlexNet, 61 M", 61_000_000, "0.8%", "40.8%", 28, 2),
    _Model("GPT-2-S, 125 M", 125_000_000, "0.8%", "40.8%", 20, 1),
)
_SMOKE_MODELS = (_Model("tiny", 50_000, "0.8%", "40.8%", 16, 1),)


def run(settings: Settings, result: CaseResult) -> None:
    """Each model in a lab of its own; the summary takes the worst of them."""
    reason = lab_unavailable() or star_missing()
    keys = ("burst_over_clean", "burst_baseline_over_dblp", "tail_ratio", "mean_ratio", *_WARM_KEYS)
    result.summary.update(dict.fromkeys(keys))
    if reason is not None:
        result.notes.append(f"not run: {reason}")
        return
    per_model = []
    models = settings.pick(_MODELS, _SMOKE_MODELS)
    touch_memory(min(max(_needed_bytes(model) for model in models), _available_bytes()) * 4 // 5)
    started = time.monotonic()
    for model in models:
        if time.monotonic() - started > _CASE_BUDGET_S:
            result.notes.append(f"{model.name} left out: the time was up")
            continue
        if _needed_bytes(model) > _available_bytes():
            needed_gb = _needed_bytes(model) / 1e9
            result.notes.append(f"{model.name} left out: it needs {needed_gb:.0f} GB of memory")
            continue
        with NetworkLab(4, offloads=model.offloads) as lab, contextlib.ExitStack() as stack:
            per_model.append(_run_model(result, model, lab, stack))
    for key in keys:
        values = [value for ratios in per_model if (value := ratios[key]) is not None]
        if values:
            result.summary[key] = max(values) if key == "burst_over_clean" else min(values)


def _sides(model: _Model) -> dict[str, dict[str, object]]:
    import dblp

    adaptive = f"adaptive:{model.low}:{model.high}"
    sides: dict[str, dict[str, object]] = {
        _BASELINE: {"policy": f"fixed:{model.low}"},
        _ADAPTIVE: {"policy": adaptive},
    }
    fields = {field.name for field in dataclasses.fields(dblp.TransportConfig)}
    if fields.issuperset(_DEADLINE):
        sides[_WITH_DEADLINE] = {"policy": adaptive, "config": _DEADLINE}
    return sides


def _run_model(
    result: CaseResult, model: _Model, lab: NetworkLab, stack: contextlib.ExitStack
) -> dict[str, float | None]:
    sides = _sides(model)
    if _WITH_DEADLINE not in sides:
        network.note(result, "this TransportConfig has no deadline: that side was left out")
    stars = {
        name: stack.enter_context(
            DblpStar(
                lab,
                network.SERVER_HOST,
                network.WORKER_HOSTS,
                downlink="lossy",
                nbytes=model.parameters * 4,
                **options,  # type: ignore[arg-type]
            )
        )
        for name, options in sides.items()
    }
    bursts = _burst_rounds(model)
    rounds: dict[str, StarRounds] = {name: StarRounds() for name in stars}
    names = list(stars)
    start = 0
    for turn, burst in enumerate((*bursts, model.rounds)):
        shift = turn % len(names)
        for name in (*names[shift:], *names[:shift]):
            if name not in stars:
                continue
            try:
                _segment(lab, stars[name], rounds[name], model, start, burst)
            except PeerError as error:
                result.failures.append(f"{model.name}, {name}: {error}")
                stars.pop(name).close()
        start = burst + 1
    return _record(result, model, bursts, rounds)


def _segment(
    lab: NetworkLab, star: DblpStar, rounds: StarRounds, model: _Model, start: int, burst: int
) -> None:
    """The calm rounds from `start` up to the burst, then the burst round, if there is one."""
    nbytes = model.parameters * 4
    if burst > start:
        rounds.extend(star.rounds(nbytes, burst - start, limit_s=_LIMIT_S))
    if burst < model.rounds:
        lab.set_loss(_BURST_PPM, protocol="udp")
        try:
            rounds.extend(star.rounds(nbytes, 1, limit_s=_LIMIT_S))
        finally:
            lab.set_loss(0)


def _burst_rounds(model: _Model) -> list[int]:
    """Positions of the bursts: random, spread over the calm part, the same for every side."""
    span = (model.rounds - _CALM_ROUNDS) / model.bursts
    rng = random.Random(model.parameters)
    return [
        int(_CALM_ROUNDS + index * span + rng.random() * (span - 1))
        for index in range(model.bursts)
    ]


def _record(
    result: CaseResult, model: _Model, bursts: list[int], rounds: dict[str, StarRounds]
) -> dict[str, float | None]:
    seen: dict[str, Distribution] = {}
    clean_p50: dict[str, float] = {}
    burst_p50: dict[str, float] = {}
    for name, done in rounds.items():
        if not done.elapsed_s:
            continue
        uplink = [max(times) for times in zip(*done.uplink_s, strict=True)]
        for measured, seconds in (("round", done.elapsed_s), ("uplink", uplink)):
            in_burst = [s for at, s in enumerate(seconds) if at in bursts]
            # The first round is cold, and the first interval is critical: they are in the
            # distribution, but the clean median is of the normal regime.
            calm = [s for at, s in enumerate(seconds) if at not in bursts and at >= _CALM_ROUNDS]
            distribution = result.add(
                seconds, "ms", scale=1e3, model=model.name, side=name, measured=measured,
                clean_p50_ms=_ms(calm), burst_p50_ms=_ms(in_burst),
                bursts_ms=" ".join(f"{s * 1e3:.1f}" for s in in_burst),
                at_deadline=done.at_deadline, fallback=done.fallback,
            )  # fmt: skip
            if measured == "round":
                seen[name] = distribution
                if calm and in_burst:
                    clean_p50[name] = statistics.median(calm)
                    burst_p50[name] = statistics.median(in_burst)
    stem = model.name.replace(",", "").replace(" ", "-").lower()
    series = {name: [s * 1e3 for s in done.elapsed_s] for name, done in rounds.items()}
    for kind, x_label, y_label in (("line", "round", "ms"), ("cdf", "ms", "share of rounds")):
        title = f"{model.name}: rounds with bursts of 70 % loss"
        log = kind == "cdf"
        result.charts.append(
            Chart(f"{stem}-{kind}", title, y_label, series, kind, x_label=x_label, log=log)
        )
    best = _WITH_DEADLINE if _WITH_DEADLINE in seen else _ADAPTIVE
    base, mine = seen.get(_BASELINE), seen.get(best)
    return {
        "burst_over_clean": ratio(burst_p50.get(_WITH_DEADLINE), clean_p50.get(_WITH_DEADLINE)),
        "burst_baseline_over_dblp": ratio(burst_p50.get(_BASELINE), burst_p50.get(best)),
        "tail_ratio": ratio(base.max, mine.max) if base and mine else None,
        "mean_ratio": ratio(base.mean, mine.mean) if base and mine else None,
        **_warm_ratios(rounds.get(_BASELINE), rounds.get(best)),
    }


def _warm_ratios(base: StarRounds | None, mine: StarRounds | None) -> dict[str, float | None]:
    """Tail and mean without the first round, which is cold: each side's memory is new."""
    if base is None or mine is None or min(len(base.elapsed_s), len(mine.elapsed_s)) < 2:
        return dict.fromkeys(_WARM_KEYS)
    warm, ours = base.elapsed_s[1:], mine.elapsed_s[1:]
    values = (max(warm) / max(ours), statistics.fmean(warm) / statistics.fmean(ours))
    return {key: ratio(value, 1.0) for key, value in zip(_WARM_KEYS, values, strict=True)}


def _ms(seconds: list[float]) -> float | None:
    return round(statistics.median(seconds) * 1e3, 2) if seconds else None


def _needed_bytes(model: _Model) -> int:
    """Three sides, each with three workers' buffers and up to six on the server."""
    return model.parameters * 4 * 3 * 9


def _available_bytes() -> int:
    with open("/proc/meminfo") as lines:
        for line in lines:
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return 0
