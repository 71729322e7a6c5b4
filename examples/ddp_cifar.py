"""Train an image classifier with DDP, its gradients carried by DBLP or by gloo.

    torchrun --nproc-per-node=2 examples/ddp_cifar.py                      # DBLP
    torchrun --nproc-per-node=2 examples/ddp_cifar.py --transport gloo     # the same without it

It trains on CIFAR-10 if `--data` names the folder with `cifar-10-batches-py` (its python version,
unpacked), and else on the handwritten digits that come with scikit-learn.
"""

import argparse
import gc
import os
import statistics
import time
from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import dblp.torch
from dblp.demo import data

WARM_UP_STEPS = 5  # the first steps build buckets, buffers and caches; they are not timed

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--transport", choices=["dblp", "gloo"], default="dblp")
parser.add_argument("--low", default="0.8%", help="tolerance in critical regimes; 0 is exact")
parser.add_argument("--high", default="40.8%", help="tolerance elsewhere")
parser.add_argument("--data", help="folder with CIFAR-10; default: handwritten digits")
parser.add_argument("--steps", type=int, default=200)
parser.add_argument("--batch", type=int, default=48, help="images per rank and step")
parser.add_argument("--width", type=int, default=32, help="channels of the first block")
options = parser.parse_args()


class Block(nn.Module):
    """Two convolutions beside a shortcut, as in a ResNet."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.path = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.shortcut = nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.path(images) + self.shortcut(images))


def network(channels: int, width: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(channels, width, 3, padding=1),
        Block(width, width, 1),
        Block(width, 2 * width, 2),
        Block(2 * width, 4 * width, 2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4 * width, 10),
    )


def batches(images: torch.Tensor, labels: torch.Tensor) -> Iterator[tuple[torch.Tensor, ...]]:
    """This rank's share of the images, shuffled anew in every epoch, without end."""
    dataset = TensorDataset(images, labels)
    sampler = DistributedSampler(dataset, drop_last=True)
    loader = DataLoader(dataset, options.batch, sampler=sampler, drop_last=True)
    epoch = 0
    while True:
        sampler.set_epoch(epoch)
        yield from loader
        epoch += 1


def accuracy(net: nn.Module, dataset: data.Dataset, device: torch.device) -> float:
    """Of the test images; every rank tests its share."""
    own = slice(dist.get_rank(), None, dist.get_world_size())
    images, labels = dataset.test_images[own], dataset.test_labels[own]
    correct = torch.zeros(())
    net.eval()
    with torch.no_grad():
        for at in range(0, len(labels), 500):
            scores = net(dataset.normalised(images[at : at + 500]).to(device))
            correct += (scores.argmax(dim=1).cpu() == labels[at : at + 500]).sum()
    dist.all_reduce(correct)
    return float(correct) / len(dataset.test_labels)


def replica_difference(net: nn.Module) -> float:
    """The largest difference of a parameter between two ranks."""
    weights = nn.utils.parameters_to_vector(net.parameters()).detach().cpu()
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
    dataset = data.load(options.data)
    net = network(dataset.train_images.shape[1], options.width).to(device)
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=options.steps)

    reports: list[dblp.torch.StepReport] = []
    if options.transport == "dblp":
        policy = dblp.GradientNormPolicy(low=options.low, high=options.high)
        state = dblp.torch.register(model, policy=policy)  # <- DBLP, all of it
        state.on_step = reports.append  # only to print what it did

    step_s, losses = [], []
    stream = batches(dataset.train_images, dataset.train_labels)
    for step, (images, labels) in zip(range(options.steps), stream, strict=False):
        inputs, labels = dataset.normalised(images).to(device), labels.to(device)
        started = time.perf_counter()
        loss = nn.functional.cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
        step_s.append(time.perf_counter() - started)
        schedule.step()
        if dist.get_rank() == 0 and step % max(1, options.steps // 10) == 0:
            print(f"step {step:4}: loss {losses[-1]:.4f}, {step_s[-1] * 1e3:.1f} ms", flush=True)

    correct, difference = accuracy(net, dataset, device), replica_difference(net)
    if dist.get_rank() == 0:
        median_ms = statistics.median(step_s[WARM_UP_STEPS:] or step_s) * 1e3
        count = sum(parameter.numel() for parameter in net.parameters())
        ranks = dist.get_world_size()
        print(f"{options.transport} on {dataset.name}, {ranks} ranks, {count:,} parameters")
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
        print(f"test accuracy {correct:.2%}")


if __name__ == "__main__":
    main()
    # DDP holds the process group in a reference cycle, and gloo's threads, which end with it, must
    # not outlive Python: torch 2.13 aborts at exit now and then if they do.
    gc.collect()
    dist.destroy_process_group()
