"""The paper's models, and smaller configurations of them for machines without a GPU.

EfficientNet, ResNet and GPT-2 are those of Hugging Face's transformers, with new weights; AlexNet
and DenseNet are written out.  All images have 32×32 pixels and three channels.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from ..errors import ConfigError

__all__ = ["MODELS", "build"]

ALEXNET_WIDTHS = {"paper": (64, 192, 384, 256, 256, 4096), "small": (32, 64, 96, 64, 64, 256)}
DENSENETS = {"paper": (32, (6, 12, 32, 32), 1), "small": (12, (3, 3, 3), 2)}
"""Growth, layers per block, first stride; DenseNet-169 as published, but for 32×32 pixels."""

GPT2_SIZES = {
    "paper": {"n_layer": 12, "n_head": 12, "n_embd": 768},
    "small": {"n_layer": 2, "n_head": 2, "n_embd": 64},
}


class AlexNet(nn.Module):
    """Five convolutions and three dense layers, with the strides that suit 32×32 pixels.

    At its full widths 57 million parameters with 224×224 pixels; here the first dense layer sees
    6×6 after pooling, as in the original.
    """

    def __init__(self, classes: int, size: str) -> None:
        super().__init__()
        first, second, third, fourth, fifth, dense = ALEXNET_WIDTHS[size]
        self.features = nn.Sequential(
            nn.Conv2d(3, first, 3, stride=1, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(first, second, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(second, third, 3, padding=1), nn.ReLU(),
            nn.Conv2d(third, fourth, 3, padding=1), nn.ReLU(),
            nn.Conv2d(fourth, fifth, 3, padding=1), nn.ReLU(),
        )  # fmt: skip
        pooled = 6 if size == "paper" else 4
        self.classifier = nn.Sequential(
            nn.AdaptiveAvgPool2d(pooled), nn.Flatten(),
            nn.Dropout(0.5 if size == "paper" else 0.1),
            nn.Linear(fifth * pooled * pooled, dense), nn.ReLU(),
            nn.Linear(dense, dense), nn.ReLU(), nn.Linear(dense, classes),
        )  # fmt: skip

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        """Logits (n, classes) of images (n, 3, 32, 32)."""
        logits: torch.Tensor = self.classifier(self.features(pixels))
        return logits


class DenseLayer(nn.Module):
    """BatchNorm, 1×1, BatchNorm, 3×3; its input stays in front of its output."""

    def __init__(self, channels: int, growth: int) -> None:
        super().__init__()
        self.grow = nn.Sequential(
            nn.BatchNorm2d(channels), nn.ReLU(), nn.Conv2d(channels, 4 * growth, 1, bias=False),
            nn.BatchNorm2d(4 * growth), nn.ReLU(),
            nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False),
        )  # fmt: skip

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """(n, channels + growth, h, w)"""
        return torch.cat([features, self.grow(features)], 1)


def densenet(classes: int, size: str) -> nn.Module:
    """DenseNet for 32×32 pixels: no pooling before the first block."""
    growth, blocks, stride = DENSENETS[size]
    channels = 2 * growth
    layers: list[nn.Module] = [nn.Conv2d(3, channels, 3, stride, padding=1, bias=False)]
    for number, count in enumerate(blocks):
        for _ in range(count):
            layers.append(DenseLayer(channels, growth))
            channels += growth
        if number < len(blocks) - 1:
            half = channels // 2
            layers += [nn.BatchNorm2d(channels), nn.ReLU(),
                       nn.Conv2d(channels, half, 1, bias=False), nn.AvgPool2d(2)]  # fmt: skip
            channels = half
    layers += [nn.BatchNorm2d(channels), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
               nn.Linear(channels, classes)]  # fmt: skip
    return nn.Sequential(*layers)


class Logits(nn.Module):
    """A classifier of transformers that returns its logits alone."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        """Logits (n, classes)."""
        logits: torch.Tensor = self.net(pixel_values=pixels).logits
        return logits


def _transformers() -> Any:
    try:
        import transformers
    except ImportError as error:
        raise ConfigError(
            "this experiment's model comes with transformers, which is not installed: run pip "
            "install 'dblp[experiments]'"
        ) from error
    return transformers


def initialised(net: nn.Module) -> nn.Module:
    """Gives convolutions weights after He et al. (2015) and makes BatchNorm the identity, as the
    published models start."""
    for module in net.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out")
        elif isinstance(module, nn.BatchNorm2d):
            nn.init.ones_(module.weight)
        else:
            continue
        if module.bias is not None:
            nn.init.zeros_(module.bias)
    return net


def alexnet(classes: int, size: str) -> nn.Module:
    """AlexNet; with PyTorch's own initial weights, and no BatchNorm, it does not begin to learn in
    a small training."""
    return initialised(AlexNet(classes, size))


def efficientnet(classes: int, size: str) -> nn.Module:
    """EfficientNet-B0, or half as wide and deep."""
    library = _transformers()
    scale = 1.0 if size == "paper" else 0.5
    config = library.EfficientNetConfig(
        image_size=32,
        num_labels=classes,
        width_coefficient=scale,
        depth_coefficient=scale,
        hidden_dim=1280 if size == "paper" else 640,
        # The library's 0.99 is Keras' meaning of the number; PyTorch's is the other way round.
        batch_norm_momentum=0.01 if size == "paper" else 0.1,
        drop_connect_rate=0.2 if size == "paper" else 0.0,
        dropout_rate=0.2 if size == "paper" else 0.0,
        # B0 halves its pixels five times; at 32×32 the small one keeps the first two.
        **({} if size == "paper" else {"strides": [1, 1, 2, 2, 1, 2, 1]}),
    )
    # transformers 5 draws BatchNorm's weights around zero: signals vanish within a few blocks.
    return Logits(initialised(library.EfficientNetForImageClassification(config)))


def resnet(classes: int, size: str) -> nn.Module:
    """ResNet-50, or a ResNet of basic blocks."""
    library = _transformers()
    if size == "paper":
        config = library.ResNetConfig(num_labels=classes)
    else:
        config = library.ResNetConfig(
            embedding_size=16,
            hidden_sizes=[16, 32, 64, 128],
            depths=[1, 1, 1, 1],
            layer_type="basic",
            num_labels=classes,
        )
    return Logits(library.ResNetForImageClassification(config))


def gpt2(vocabulary: int, size: str) -> nn.Module:
    """GPT-2 as published ("paper", 124 million parameters with its own vocabulary), or two small
    layers."""
    library = _transformers()
    config = library.GPT2Config(
        vocab_size=vocabulary,
        n_positions=1024,
        bos_token_id=0,
        eos_token_id=0,
        **GPT2_SIZES[size],
        **({} if size == "paper" else {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}),
    )
    net = library.GPT2LMHeadModel(config)
    net.loss_type = "ForCausalLM"  # what it is; transformers 5 warns when it has to guess
    module: nn.Module = net
    return module


MODELS: dict[str, Callable[[int, str], nn.Module]] = {
    "alexnet": alexnet,
    "densenet": densenet,
    "efficientnet": efficientnet,
    "gpt2": gpt2,
    "resnet": resnet,
}
"""A model by its name: takes the number of classes or words, and the size."""


def build(name: str, classes: int, size: str, seed: int) -> nn.Module:
    """The model with the same weights in every process that gives the same seed."""
    torch.manual_seed(seed)
    return MODELS[name](classes, size)
