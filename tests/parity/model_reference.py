#!/usr/bin/env python3
"""Makes data/model_*.safetensors: logits, loss and gradients of torch.nn models that are built like ours.

Each file holds "parameter/NAME", "input", "target", "logits", "loss" and "gradient/NAME" (torch 2.13.0).
Large models have no parameters in the file: those are the values of wave(), which the test computes too, and
of the gradients there are "gradient_norm/NAME" and the first numbers, "gradient_begin/NAME". They are computed
in f64: in f32 a gradient of resnet50, whose batch norms see few values, differs by 10 % between processors.
"""
import pathlib
import sys

import torch
from safetensors.torch import save_file
from torch import nn

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "bench" / "peers"))
import models


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(144, 12), nn.Linear(12, 10)

    def forward(self, images):
        return self.fc2(self.fc1(images.flatten(1)).relu())


class Cnn(nn.Module):
    def __init__(self, channels1, channels2, hidden):
        super().__init__()
        self.conv1 = nn.Conv2d(1, channels1, 3, padding=1)
        self.conv2 = nn.Conv2d(channels1, channels2, 3, padding=1)
        self.fc1, self.fc2 = nn.Linear(channels2 * 3 * 3, hidden), nn.Linear(hidden, 10)

    def forward(self, images):
        values = nn.functional.max_pool2d(self.conv1(images).relu(), 2)
        values = nn.functional.max_pool2d(self.conv2(values).relu(), 2)
        return self.fc2(self.fc1(values.flatten(1)).relu())


def main():
    torch.manual_seed(1)
    folder = pathlib.Path(__file__).parent / "data"
    for name, model in {"mlp": Mlp(), "cnn": Cnn(16, 32, 128)}.items():
        images, target = torch.randn(3, 1, 12, 12), torch.tensor([1, 9, 4])
        logits = model(images)
        loss = nn.functional.cross_entropy(logits, target)
        loss.backward()
        tensors = {"input": images, "target": target, "logits": logits.detach(), "loss": loss.detach()}
        for key, parameter in model.named_parameters():
            tensors["parameter/" + key] = parameter.detach()
            tensors["gradient/" + key] = parameter.grad
        save_file(tensors, folder / f"model_{name}.safetensors", {"made_with": "torch " + torch.__version__})


def wave(name, parameter):
    """Numbers that any language makes alike: a sine of the index, of the size that suits the layer."""
    count, dims = parameter.numel(), parameter.dim()
    values = torch.sin(0.7 * torch.arange(count, dtype=torch.float64) + len(name))
    if dims > 1:
        return (values * (2 / (count / parameter.shape[0])) ** 0.5).float().view(parameter.shape)
    return (0.1 * values + (1 if name.endswith("weight") else 0)).float()


def make_large(name, model, samples, target):
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            parameter.copy_(wave(key, parameter))
    model.double()
    logits = model(samples.double() if samples.is_floating_point() else samples)
    loss = nn.functional.cross_entropy(logits.flatten(0, -2), target)
    loss.backward()
    tensors = {"input": samples, "target": target, "logits": logits.detach().float(), "loss": loss.detach().float()}
    for key, parameter in model.named_parameters():
        tensors["gradient_norm/" + key] = parameter.grad.norm().float()
        tensors["gradient_begin/" + key] = parameter.grad.flatten()[:8].float()
    save_file(tensors, pathlib.Path(__file__).parent / "data" / f"model_{name}.safetensors",
              {"made_with": "torch " + torch.__version__})


def large():
    torch.manual_seed(2)
    images, classes = torch.randn(4, 3, 64, 64), torch.tensor([3, 0, 9, 7])
    make_large("resnet18", models.resnet18(num_classes=10), images, classes)
    make_large("resnet50", models.resnet50(num_classes=10), images, classes)
    tokens = torch.randint(65, (2, 16))
    make_large("gpt", models.Gpt(layers=2, heads=4, width=32, block=16), tokens, torch.randint(65, (32,)))


if __name__ == "__main__":
    main()
    large()
