"""The work of bench_activation_memory with torch.utils.checkpoint (use_reentrant=False): one line of JSON per way.
Usage: activation_memory.py [--rounds 21] [--layers 8] [--width 256] [--batch 8] [--block 128]"""
import answer_help  # before all others
import argparse
import json
import statistics
import time

import torch
from torch.utils.checkpoint import checkpoint

from models import Gpt

parser = argparse.ArgumentParser()
for name, default in (("rounds", 21), ("layers", 8), ("width", 256), ("batch", 8), ("block", 128)):
    parser.add_argument(f"--{name}", type=int, default=default)
arguments = parser.parse_args()
torch.set_num_threads(1)
gpt = Gpt(arguments.layers, 4, arguments.width, arguments.block, 65)
tokens = torch.randint(65, (arguments.batch, arguments.block))


def recomputing(block):
    plain = block.forward
    block.forward = lambda values: checkpoint(plain, values, use_reentrant=False)
    return lambda: setattr(block, "forward", plain)


def step(every):
    blocks = [module for module in gpt.modules() if type(module).__name__ == "GptBlock"]
    undo = [recomputing(block) for block in (blocks[::every] if every else [])]
    begin = time.thread_time()
    gpt(tokens).logsumexp(2).sum().backward()
    seconds = time.thread_time() - begin
    for back in undo:
        back()
    return seconds


ways = {"kept": 0, "every second block": 2, "all blocks": 1}
milliseconds, ratios = {name: [] for name in ways}, {name: [] for name in ways}
for turn in range(-1, arguments.rounds):
    for name, every in ways.items():
        seconds = step(every)
        if name == "kept":
            kept = seconds
        if turn >= 0:
            milliseconds[name].append(1e3 * seconds)
            ratios[name].append(seconds / kept)
for name in ways:
    print(json.dumps({"way": name, "ms": statistics.median(milliseconds[name]),
                      "time_over_kept": statistics.median(ratios[name])}))
