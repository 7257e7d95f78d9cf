#!/usr/bin/env python3
"""Makes data/optim_*.safetensors: 20 steps of torch.optim on fixed gradients (torch 2.13.0, safetensors).

Each file holds the first parameters ("first/NAME"), the gradients ("gradient/NAME", leading dim = step) and the
parameters after every step ("after/NAME"); the options stand in the metadata. The gradient of "late" is missing
in the first 5 steps: a parameter without a gradient must not age.
"""
import pathlib

import torch
from safetensors.torch import save_file

STEPS = 20
SHAPES = {"weight": (5, 3), "bias": (7,), "late": (2, 2)}
CASES = {
    "sgd": (torch.optim.SGD, dict(lr=0.1)),
    "sgd_momentum": (torch.optim.SGD, dict(lr=0.1, momentum=0.9)),
    "sgd_nesterov_decay": (torch.optim.SGD, dict(lr=0.05, momentum=0.8, nesterov=True, weight_decay=0.01)),
    "adamw": (torch.optim.AdamW, dict(lr=0.01, weight_decay=0.0)),
    "adamw_decay": (torch.optim.AdamW, dict(lr=0.02, betas=(0.8, 0.95), eps=1e-6, weight_decay=0.1)),
}


def run(kind, options):
    generator = torch.Generator().manual_seed(1)
    first = {name: torch.randn(shape, generator=generator) for name, shape in SHAPES.items()}
    gradients = {name: torch.randn((STEPS, *shape), generator=generator) for name, shape in SHAPES.items()}
    parameters = {name: value.clone().requires_grad_() for name, value in first.items()}
    optimizer = kind(list(parameters.values()), foreach=False, **options)
    after = {name: [] for name in SHAPES}
    for step in range(STEPS):
        for name, parameter in parameters.items():
            missing = name == "late" and step < 5
            parameter.grad = None if missing else gradients[name][step].clone()
        optimizer.step()
        for name, parameter in parameters.items():
            after[name].append(parameter.detach().clone())
    tensors = {}
    for name in SHAPES:
        tensors["first/" + name] = first[name]
        tensors["gradient/" + name] = gradients[name]
        tensors["after/" + name] = torch.stack(after[name])
    return tensors


def main():
    folder = pathlib.Path(__file__).parent / "data"
    for case, (kind, options) in CASES.items():
        flat = dict(options)
        flat["beta1"], flat["beta2"] = flat.pop("betas", (0.9, 0.999))
        metadata = {key: repr(value) for key, value in flat.items()}
        metadata["made_with"] = "torch " + torch.__version__
        save_file(run(kind, options), folder / f"optim_{case}.safetensors", metadata)


if __name__ == "__main__":
    main()
