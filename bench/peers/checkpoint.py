"""The work of bench/checkpoint.cpp with torch.distributed.checkpoint.

    checkpoint.py [--folder DIR] [--passes N]
    checkpoint.py --summary FILE     medians and ratios of the JSON lines of many runs
"""
import answer_help  # before all others
import argparse
import json
import os
import shutil
import statistics
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))


def drop_from_page_cache(folder):
    for root, _, names in os.walk(folder):
        for name in names:
            descriptor = os.open(os.path.join(root, name), os.O_RDONLY)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)


def measure(folder, passes):
    import warnings

    import models
    import torch
    import torch.distributed.checkpoint as dcp

    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    model = models.resnet50()
    state = dict(model.state_dict())
    for name, parameter in model.named_parameters():
        state[name + "/exp_avg"] = torch.full_like(parameter, 1e-3).detach()
        state[name + "/exp_avg_sq"] = torch.full_like(parameter, 1e-6).detach()
    size = sum(tensor.nbytes for tensor in state.values())

    def report(what, work):
        start = time.perf_counter()
        work()
        seconds = time.perf_counter() - start
        print(json.dumps({"system": "python", "what": what, "s": seconds, "gb_per_s": size / seconds / 1e9}))

    for _ in range(passes):
        shutil.rmtree(folder, ignore_errors=True)
        report("save", lambda: dcp.save(state, checkpoint_id=folder))
        drop_from_page_cache(folder)
        report("load", lambda: dcp.load(state, checkpoint_id=folder))
    shutil.rmtree(folder, ignore_errors=True)


def summarise(path):
    entries = [json.loads(line) for line in open(path)]
    cell = lambda v: f"{statistics.median(v):.2f} ({min(v):.2f}-{max(v):.2f})"
    speeds = {}
    for entry in entries:
        if "gb_per_s" in entry:
            speeds.setdefault((entry["what"], entry["system"]), []).append(entry["gb_per_s"])
    print("| GB/s | trireme | plain file | torch.distributed.checkpoint | of the disk | ratio to the peer |")
    print("| --- | --- | --- | --- | --- | --- |")
    for what, plain in (("save", "write"), ("load", "read")):
        ours, disk, peer = speeds[what, "trireme"], speeds[plain, "trireme"], speeds.get((what, "python"))
        of = lambda other: f"{statistics.median(a / b for a, b in zip(ours, other)):.2f}"
        print(f"| {what} | {cell(ours)} | {cell(disk)} | {cell(peer)} | {of(disk)} | {of(peer)} |")
    print("| saving | step, ms | hold-up of a save, ms | share of a step | run with saves / without |")
    print("| --- | --- | --- | --- | --- |")
    for asynchronous in (True, False):
        rows = [e for e in entries if e["what"] == "hold-up" and e["asynchronous"] == asynchronous]
        if not rows:
            continue
        column = lambda key, scale=1: cell([scale * row[key] for row in rows])
        print(f"| {'in the background' if asynchronous else 'by the training thread'} | {column('step_s', 1e3)} | "
              f"{column('stalled_s', 1e3)} | {column('share_of_a_step')} | {column('wall_ratio')} |")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", default="bench-checkpoint-peer")
    parser.add_argument("--passes", type=int, default=5)
    parser.add_argument("--summary")
    args = parser.parse_args()
    sys.exit(summarise(args.summary) if args.summary else measure(args.folder, args.passes))
