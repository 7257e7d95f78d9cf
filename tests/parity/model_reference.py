#!/usr/bin/env python3
"""Makes data/model_*.safetensors: logits, loss and gradients of torch.nn models that are built like ours.

Each file holds "parameter/NAME", "input", "target", "logits", "loss" and "gradient/NAME" (torch 2.13.0).
"""
import pathlib

import torch
from safetensors.torch import save_file
from torch import nn


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


if __name__ == "__main__":
    main()
