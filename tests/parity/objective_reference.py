#!/usr/bin/env python3
"""Makes data/objectives.safetensors: mean losses of torch.nn.functional and their gradients (torch 2.13.0).

Of each case there are "CASE/output", "CASE/target", "CASE/loss" (the mean) and "CASE/gradient" (of the mean by
the output); objective_parity_test.cpp holds the same cases under the same names.
"""
import pathlib

import torch
from safetensors.torch import save_file
from torch.nn import functional as F

SAMPLES, CLASSES = 7, 5
WEIGHTS = torch.tensor([0.5, 2.0, 1.0, 0.25, 3.0])


def main():
    torch.manual_seed(3)
    tensors = {}

    def add(name, output, target, loss):
        output.requires_grad_()
        mean = loss(output, target)
        mean.backward()
        tensors.update({f"{name}/output": output.detach(), f"{name}/target": target,
                        f"{name}/loss": mean.detach(), f"{name}/gradient": output.grad})

    def classes(name, **options):
        target = torch.randint(CLASSES, (SAMPLES,))
        target[2] = target[5] = 1
        add(name, 3 * torch.randn(SAMPLES, CLASSES), target, lambda o, t: F.cross_entropy(o, t, **options))

    classes("cross_entropy")
    classes("cross_entropy_smoothed", label_smoothing=0.2)
    classes("cross_entropy_ignored", ignore_index=1)
    classes("cross_entropy_weighted", weight=WEIGHTS)
    classes("cross_entropy_all", label_smoothing=0.1, ignore_index=1, weight=WEIGHTS)
    tokens = torch.randint(CLASSES, (3, 4))
    add("cross_entropy_tokens", torch.randn(3, 4, CLASSES), tokens,
        lambda o, t: F.cross_entropy(o.flatten(0, 1), t.flatten()))
    add("mean_squared_error", torch.randn(SAMPLES, 2, 3), torch.randn(SAMPLES, 2, 3), F.mse_loss)
    yes = torch.tensor([0.0, 1, 1, 0, 0.25, 1, 0]).unsqueeze(1).repeat(1, 2)
    add("binary_cross_entropy", 2 * torch.randn(SAMPLES, 2), yes, F.binary_cross_entropy_with_logits)
    add("binary_cross_entropy_weighted", 2 * torch.randn(SAMPLES, 2), yes.clone(),
        lambda o, t: F.binary_cross_entropy_with_logits(o, t, pos_weight=torch.tensor([2.5])))
    save_file(tensors, pathlib.Path(__file__).parent / "data" / "objectives.safetensors",
              {"made_with": "torch " + torch.__version__})


if __name__ == "__main__":
    main()
