"""What differs from the paper's testbed, and why: sentences that follow from the configuration."""

from __future__ import annotations

from collections.abc import Mapping

from .measures import Column
from .store import RunInfo

__all__ = ["of"]

PAPER_NETWORK = (
    "The paper's workers and server are machines of their own with GPUs on a network; here all "
    "processes share {cores} cores and {network}. So times contain waiting for a core, and on "
    "loopback there is no queue that a burst could fill: a burst is injected loss on arrival, as "
    "in the paper, and nothing else."
)


def of(info: RunInfo, columns: Mapping[str, Column]) -> list[str]:
    """One sentence or two per difference."""
    found = [
        PAPER_NETWORK.format(
            cores=info.machine.get("cores", "a few"),
            network=info.machine.get("network", "loopback"),
        )
    ]
    trained = [column for column in columns.values() if not column.is_traffic]
    if info.scale == "smoke":
        found.append(
            "Scale smoke is twelve steps on data that comes with packages: it shows that "
            "everything runs. None of its numbers means anything."
        )
    if info.scale == "small" and trained:
        load = trained[0].workload
        share = "all" if load.samples is None else f"{load.samples:,}"
        unit = "tokens" if load.data == "wikitext2" else "images"
        found.append(
            f"Training is smaller: {share} {unit} of {load.data}, {load.epochs} epochs, a small "
            f"configuration of {load.model}. Scores are lower than the paper's and comparable "
            "among each other only."
        )
    if any(column.is_traffic for column in columns.values()):
        found.append(
            "Latencies and times are of gradients of the real model's size, sent round after round "
            "without computing them. So ratios of times are those of communication alone, an upper "
            "bound of what a training with computation would gain."
        )
    if any(column.setting.transport == "mesh" for column in trained):
        found.append(
            "Our defaults average in a mesh: what a rank averages itself is never lost, so with "
            "three ranks only two thirds of a gradient can be. The share that arrived is in the "
            "tables."
        )
    if info.experiment == "phase-drop":
        found.append(
            "Drops are made by the transport: the server stops each worker at the tolerance, with "
            "chunks sent in a random order. The paper zeroes elements of received gradients. Its "
            "model is DenseNet-169."
        )
        found.append(
            "As in the paper, the early phase is a third of the training and the middle and late "
            "ones are two thirds: drops there hit twice as many steps."
        )
    if info.experiment == "gpt2":
        found.append(
            "Perplexity is per word of WikiText-2 (rare words are <unk>), with new weights. The "
            "paper's 1.6 cannot be such a perplexity; it does not say what it is of."
        )
    if info.experiment in ("efficientnet-b0", "resnet50", "alexnet", "gpt2"):
        found.append(
            "The paper gives no learning rates, batch sizes, optimizers or interval of Eq. 1. "
            "Batches are chosen such that an epoch has about its 93 iterations at --scale paper."
        )
    missing = len(info.cells) - sum(len(column.cells) for column in columns.values())
    if missing > 0:
        found.append(f"{missing} of {len(info.cells)} cells were not run.")
    return found
