"""Train GPT-2 with DDP, its gradients carried by DBLP or by gloo.

    torchrun --nproc-per-node=2 examples/ddp_gpt2.py                      # DBLP, a tiny GPT-2
    torchrun --nproc-per-node=2 examples/ddp_gpt2.py --transport gloo     # the same without it
    torchrun --nproc-per-node=2 examples/ddp_gpt2.py --size small         # 124 M parameters

The model is that of Hugging Face's transformers, with new weights; a token is a byte, so nothing is
downloaded.  It trains on WikiText-2 if `--data` names the folder with `wiki.train.tokens` and
`wiki.valid.tokens`, and else on the source text of Python's standard library.
"""

import argparse
import gc
import math
import os
import statistics
import sysconfig
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from transformers import GPT2Config, GPT2LMHeadModel

import dblp.torch

WARM_UP_STEPS = 5  # the first steps build buckets, buffers and caches; they are not timed
SIZES = {  # "small" is GPT-2 as published: 124 M parameters, most of its vocabulary unused here
    "tiny": {"n_layer": 4, "n_head": 4, "n_embd": 128, "vocab_size": 256},
    "small": {"n_layer": 12, "n_head": 12, "n_embd": 768, "vocab_size": 50257},
}
PYTHON_SOURCE_BYTES = 4_000_000
VALIDATION_BATCHES = 4

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--transport", choices=["dblp", "gloo"], default="dblp")
parser.add_argument("--low", default="0.8%", help="tolerance in critical regimes; 0 is exact")
parser.add_argument("--high", default="40.8%", help="tolerance elsewhere")
parser.add_argument("--data", type=Path, help="folder with WikiText-2; default: Python's source")
parser.add_argument("--size", choices=SIZES, default="tiny")
parser.add_argument("--steps", type=int, default=100)
parser.add_argument("--batch", type=int, default=8, help="sequences per rank and step")
parser.add_argument("--length", type=int, default=128, help="bytes of a sequence, at most 1024")
options = parser.parse_args()


def read_text() -> tuple[str, bytes, bytes]:
    """Name of the text, what to train on, what to validate on."""
    if options.data is not None:
        parts = (f"wiki.{part}.tokens" for part in ("train", "valid"))
        return "WikiText-2", *((options.data / name).read_bytes() for name in parts)
    folder = Path(sysconfig.get_path("stdlib"))
    source = b"".join(path.read_bytes() for path in sorted(folder.glob("*.py")))
    source = source[:PYTHON_SOURCE_BYTES]
    cut = len(source) * 9 // 10
    return "Python's source", source[:cut], source[cut:]


def pieces(text: bytes, generator: torch.Generator) -> torch.Tensor:
    """A batch of random pieces of the text as token ids, int64 (batch, length)."""
    starts = torch.randint(len(text) - options.length, (options.batch,), generator=generator)
    return torch.tensor([list(text[at : at + options.length]) for at in starts.tolist()])


def bits_per_byte(
    net: GPT2LMHeadModel, text: bytes, generator: torch.Generator, device: torch.device
) -> float:
    """On random pieces of the text, other ones at every rank."""
    total = torch.zeros(())
    net.eval()
    with torch.no_grad():
        for _ in range(VALIDATION_BATCHES):
            tokens = pieces(text, generator).to(device)
            total += net(input_ids=tokens, labels=tokens).loss.cpu()
    dist.all_reduce(total)
    return float(total) / VALIDATION_BATCHES / dist.get_world_size() / math.log(2)


def replica_difference(net: torch.nn.Module) -> float:
    """The largest difference of a parameter between two ranks."""
    weights = torch.nn.utils.parameters_to_vector(net.parameters()).detach().cpu()
    highest, lowest = weights.clone(), weights.clone()
    dist.all_reduce(highest, dist.ReduceOp.MAX)
    dist.all_reduce(lowest, dist.ReduceOp.MIN)
    return float((highest - lowest).max())


def main() -> None:
    dist.init_process_group("gloo")
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.manual_seed(1)
    name, train_text, valid_text = read_text()
    config = GPT2Config(**SIZES[options.size], bos_token_id=0, eos_token_id=0)
    net = GPT2LMHeadModel(config).to(device)
    net.loss_type = "ForCausalLM"  # what it is; transformers 5 warns when it has to guess
    model = DistributedDataParallel(net)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3 if options.size == "tiny" else 3e-4)

    reports: list[dblp.torch.StepReport] = []
    if options.transport == "dblp":
        policy = dblp.GradientNormPolicy(low=options.low, high=options.high)
        state = dblp.torch.register(model, policy=policy)  # <- DBLP, all of it
        state.on_step = reports.append  # only to print what it did

    step_s, losses = [], []
    generator = torch.Generator().manual_seed(100 + dist.get_rank())
    for step in range(options.steps):
        tokens = pieces(train_text, generator).to(device)
        started = time.perf_counter()
        loss = model(input_ids=tokens, labels=tokens).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(float(loss.detach()))
        step_s.append(time.perf_counter() - started)
        if dist.get_rank() == 0 and step % max(1, options.steps // 10) == 0:
            print(f"step {step:4}: loss {losses[-1]:.4f}, {step_s[-1] * 1e3:.1f} ms", flush=True)

    bits, difference = bits_per_byte(net, valid_text, generator, device), replica_difference(net)
    if dist.get_rank() == 0:
        median_ms = statistics.median(step_s[WARM_UP_STEPS:] or step_s) * 1e3
        count = sum(parameter.numel() for parameter in net.parameters())
        ranks = dist.get_world_size()
        print(f"{options.transport} on {name}, {ranks} ranks, {count:,} parameters")
        print(f"median step {median_ms:.1f} ms")
        if reports:
            critical = sum(report.regime == "critical" for report in reports)
            took_s = sum(report.communication_s for report in reports)
            waited_s = sum(report.exposed_s for report in reports)
            hidden = max(0.0, 1 - waited_s / max(took_s, 1e-9))
            print(f"{critical} of {len(reports)} steps critical")
            print(f"communication hidden behind the backward pass: {hidden:.0%}")
        print(f"replicas differ by at most {difference:g}")
        print(f"final loss {statistics.fmean(losses[-10:]):.4f}")
        print(f"validation: {bits:.3f} bits per byte")


if __name__ == "__main__":
    main()
    # DDP holds the process group in a reference cycle, and gloo's threads, which end with it, must
    # not outlive Python: torch 2.13 aborts at exit now and then if they do.
    gc.collect()
    dist.destroy_process_group()
