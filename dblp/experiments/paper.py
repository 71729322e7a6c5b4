"""The figures of the paper that a run stands beside (Tables I to VI)."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["PAPER", "PaperFigures"]


@dataclass(frozen=True, kw_only=True)
class PaperFigures:
    """What the paper says about one model.  Latencies in seconds, ratios baseline over DBLP."""

    model: str
    parameters_m: int
    """Table I, in millions."""
    bursts: tuple[float, ...] = ()
    """Tables II and III: speedup at each microburst."""
    tail: float | None = None
    mean: float | None = None
    burst_score: tuple[float, float] | None = None
    """Table IV: accuracy of DBLP and of the baseline, in percent."""
    time: float | None = None
    """Table V: normalised training time of the baseline without bursts."""
    burst_time: float | None = None
    score: tuple[float, float] = (0.0, 0.0)
    """Table VI: accuracy in percent, or perplexity, of DBLP and of the baseline."""


PAPER: dict[str, PaperFigures] = {
    "efficientnet-b0": PaperFigures(
        model="EfficientNet-B0", parameters_m=5, bursts=(4.68, 5.88), tail=1.91, mean=1.56,
        burst_score=(70.78, 72.33), time=1.1744, burst_time=1.2386, score=(71.01, 71.30),
    ),
    "resnet50": PaperFigures(
        model="ResNet-50", parameters_m=25, bursts=(4.40, 4.11, 3.72), tail=1.79, mean=1.52,
        burst_score=(82.78, 83.54), time=1.1751, burst_time=1.1978, score=(82.74, 83.22),
    ),
    "alexnet": PaperFigures(
        model="AlexNet", parameters_m=61, time=1.3393, score=(70.10, 69.97)
    ),
    "gpt2": PaperFigures(model="GPT-2", parameters_m=125, time=1.3357, score=(1.6463, 1.5981)),
}  # fmt: skip
