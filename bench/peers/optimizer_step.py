"""The work of bench/optimizer_step.cpp with PyTorch's optimizers.

    optimizer_step.py [--optimizer NAME] [--steps N]
    optimizer_step.py --summary FILE     medians and ratios of the JSON lines of many runs
"""
import answer_help  # before all others
import argparse
import json
import os
import statistics
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))


def optimizers():
    import torch

    fused, foreach = {"fused": True}, {"foreach": True}
    return {
        "sgd": (torch.optim.SGD, {"momentum": 0.9, **fused}),
        "adamw": (torch.optim.AdamW, fused),
        "adam": (torch.optim.Adam, fused),
        "adagrad": (torch.optim.Adagrad, fused),
        "rmsprop": (torch.optim.RMSprop, {"momentum": 0.9, **foreach}),
    }


def measure(name, steps):
    import models
    import torch

    torch.set_num_threads(1)
    parameters = list(models.resnet50().parameters())
    for parameter in parameters:
        parameter.grad = torch.full_like(parameter, 1e-3)
    kind, options = optimizers()[name]
    optimizer = kind(parameters, lr=1e-6, **options)
    times = []
    for _ in range(steps + 2):
        start = time.perf_counter()
        optimizer.step()
        times.append(time.perf_counter() - start)
    print(json.dumps({"system": "python", "optimizer": name, "step_ms": 1e3 * statistics.median(times[2:])}))


def summarise(path):
    runs = {}
    for line in open(path):
        entry = json.loads(line)
        runs.setdefault((entry["optimizer"], entry["system"]), []).append(entry["step_ms"])
    print("| optimizer | trireme, ms | PyTorch, ms | PyTorch / trireme |")
    print("| --- | --- | --- | --- |")
    for name in sorted({key[0] for key in runs}):
        ours, theirs = runs[name, "trireme"], runs[name, "python"]
        cell = lambda v: f"{statistics.median(v):.1f} ({min(v):.1f}-{max(v):.1f})"
        print(f"| {name} | {cell(ours)} | {cell(theirs)} | "
              f"{statistics.median(b / a for a, b in zip(ours, theirs)):.2f} |")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--optimizer", default="sgd")
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--summary")
    args = parser.parse_args()
    sys.exit(summarise(args.summary) if args.summary else measure(args.optimizer, args.steps))
