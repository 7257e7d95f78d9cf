#!/usr/bin/env python3
"""Is the plan that `trireme plan` chooses the fastest one? For each model and number of ranks: the measured step of the
chosen plan, of data parallelism, and of a sample of all plans by rising estimate, each trained for STEPS steps in turns.

    bench/plan.py [--steps 24] [--plans 12] [--passes 2] [NAME...]

Measure on a machine with nothing else to do. Prints a row for each case: the chosen plan, its measured step, the fastest
of the sample, their ratio, the ratio to data parallelism, and the correlation of the order of estimates with the order of
measurements.
"""
import argparse
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
TRIREME = pathlib.Path(os.environ.get("TRIREME_BUILD", ROOT / "build/release")) / "bin/trireme"
# Name: file, settings.
MODELS = {
    "mlp": ("examples/fashion_mnist_mlp.toml", ["data.name=synthetic", "train.global_batch=256"]),
    "wide": ("examples/fashion_mnist_mlp.toml", ["data.name=synthetic", "model.hidden=[1024, 1024, 1024]", "train.global_batch=64"]),
    "cnn": ("examples/fashion_mnist.toml", ["data.name=synthetic", "train.global_batch=64"]),
    "gpt": ("examples/gpt_char.toml", [f"data.path={ROOT}/LICENSE", "train.global_batch=16"]),
}


def trireme(*words):
    result = subprocess.run([TRIREME, *words], capture_output=True, text=True)
    if result.returncode:
        sys.exit(f"trireme {' '.join(words)}\n{result.stderr}")
    return result.stdout + result.stderr


def settings(pairs):
    return [word for pair in pairs for word in ("--set", pair)]


def measured_ms(common, plan, ranks, steps, folder):
    """The median of a run's steps, without the first two."""
    keys = settings(f"{key}={value}" for key, value in plan["settings"].items())
    out = trireme("train", *common, *keys, "-n", str(ranks), *settings([
        f"train.max_steps={steps}", "train.epochs=1000", "eval.every_steps=1000000", "checkpoint.every_steps=0",
        f"run.folder={folder}", "run.name=run"]), "--timeline", "timeline.html", "--trace-steps", f"3:{steps}")
    return float(re.search(r"the median took ([0-9.]+) ms", out)[1])


def order_correlation(estimated, measured):
    """Spearman's, without ties."""
    def places(values):
        order = sorted(range(len(values)), key=values.__getitem__)
        return {at: place for place, at in enumerate(order)}
    a, b, count = places(estimated), places(measured), len(estimated)
    return 1 - 6 * sum((a[i] - b[i]) ** 2 for i in range(count)) / (count * (count ** 2 - 1))


def sample(plans, count):
    """The first, data parallelism, and others evenly by estimate."""
    step = max(1, (len(plans) - 1) / max(1, count - 1))
    chosen = {round(i * step) for i in range(count) if round(i * step) < len(plans)}
    plain = {i for i, plan in enumerate(plans) if set(plan["settings"]) <= {"parallel.data", "parallel.planned_step_s"}}
    return [plans[i] for i in sorted(chosen | plain)], [plans[i] for i in plain]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=[])
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--plans", type=int, default=12)
    parser.add_argument("--passes", type=int, default=2)
    parser.add_argument("--ranks", type=int, nargs="*", default=[2, 4])
    given = parser.parse_args()
    print("| model | ranks | plans | chosen | estimated, ms | measured, ms | fastest of the sample, ms | chosen / fastest | data parallelism / chosen | order |")
    print("| --- | ---: | ---: | --- | ---: | ---: | ---: | ---: | ---: | ---: |", flush=True)
    for name in given.names or MODELS:
        file, keys = MODELS[name]
        common = [str(ROOT / file), *settings(keys + ["comm.torch_threads=1", "lr.schedule=constant", "lr.warmup_steps=0"])]
        for ranks in given.ranks:
            with tempfile.TemporaryDirectory() as folder:
                found = json.loads(subprocess.run([TRIREME, "plan", *common, "-n", str(ranks), "--measure", "--json"],
                                                  capture_output=True, text=True, check=True).stdout)
                plans, plain = sample(found["plans"], given.plans)
                times = [[] for _ in plans]
                for _ in range(given.passes):
                    for plan, taken in zip(plans, times):
                        taken.append(measured_ms(common, plan, ranks, given.steps, folder))
            ms = [statistics.median(taken) for taken in times]
            base = next((f"{ms[plans.index(plan)] / ms[0]:.2f}" for plan in plain), "-")
            print(f"| {name} | {ranks} | {len(found['plans'])} | {plans[0]['plan']} | {1e3 * plans[0]['step_s']:.1f} | {ms[0]:.1f} | {min(ms):.1f} | "
                  f"{ms[0] / min(ms):.2f} | {base} | {order_correlation([plan['step_s'] for plan in plans], ms):.2f} |", flush=True)


if __name__ == "__main__":
    main()
