"""A tolerance policy of one's own: `python examples/custom_policy.py`.

The tolerance is high while the gradient norm stays near its running average, and low otherwise.
"""

import math

import dblp

CRITICAL = dblp.Decision(dblp.Tolerance.of("0.8%"), dblp.Regime.CRITICAL)
NORMAL = dblp.Decision(dblp.Tolerance.of("40.8%"), dblp.Regime.NORMAL)


class SteadyNorm(dblp.TolerancePolicy):
    def __init__(self) -> None:
        self.averages: dict[int, float] = {}

    def initial(self) -> dblp.Decision:
        return CRITICAL

    def observe(self, *, stream: int, step: int, norm: float) -> dblp.Decision:
        average = self.averages.get(stream, 0.0)
        if math.isfinite(norm):  # an overflow is no phase change
            self.averages[stream] = 0.5 * average + 0.5 * norm
        return NORMAL if abs(norm - average) < 0.2 * average else CRITICAL


policy = SteadyNorm()  # dblp.ParameterServer(..., policy=SteadyNorm())
for step, norm in enumerate([4.0] * 6 + [9.0] * 6):
    decision = policy.observe(stream=0, step=step, norm=norm)
    print(f"step {step:2}, norm {norm}: {decision.regime}, tolerance {decision.tolerance}")
