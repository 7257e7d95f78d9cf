"""The work of bench/pipeline_step.cpp with torch.distributed.pipelining over gloo.

Started once per rank with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT set.
    pipeline_step.py [--model mlp|gpt|resnet50] [--schedule gpipe|1f1b|interleaved-1f1b] [--steps N]
    pipeline_step.py --summary FILE     medians and ratios of the JSON lines of many runs
"""
import answer_help  # before all others
import argparse
import json
import os
import statistics
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

MICROBATCHES = 8


def layers_of(name):
    """Layers, cuts into four stages, input, target: those of the C++ program."""
    import models
    import torch
    from torch import nn

    if name == "mlp":
        layers = [layer for _ in range(8) for layer in (nn.Linear(1024, 1024), nn.ReLU())]
        return layers, [4, 8, 12], torch.randn(128, 1024), torch.randint(1024, (128,))
    if name == "gpt":
        gpt = models.Gpt()

        class Embedding(nn.Module):
            def __init__(self):
                super().__init__()
                self.wte, self.wpe = gpt.transformer.wte, gpt.transformer.wpe

            def forward(self, tokens):
                return self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1]))

        class Logits(nn.Module):  # a copy of its own: torch.distributed.pipelining ties nothing
            def __init__(self):
                super().__init__()
                self.norm, self.head = gpt.transformer.ln_f, nn.Linear(128, 65, bias=False)

            def forward(self, values):
                return self.head(self.norm(values))

        return ([Embedding(), *gpt.transformer.h, Logits()], [2, 3, 4], torch.randint(65, (16, 64)),
                torch.randint(65, (16, 64)))
    net = models.resnet50(num_classes=10)

    class Mean(nn.Module):
        def forward(self, values):
            return values.mean((2, 3))

    stem = nn.Sequential(net.conv1, net.bn1, nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1))
    blocks = [block for stage in (net.layer1, net.layer2, net.layer3, net.layer4) for block in stage]
    return ([stem, *blocks, nn.Sequential(Mean(), net.fc)], [4, 8, 12], torch.randn(32, 3, 64, 64),
            torch.randint(10, (32,)))


def measure(name, schedule_name, steps):
    import torch
    import torch.distributed as dist
    from torch.distributed import pipelining

    torch.set_num_threads(1)
    torch.manual_seed(1)
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    layers, cuts, x, y = layers_of(name)
    if not schedule_name.startswith("interleaved"):
        cuts = cuts[1:2]
    bounds = [0, *cuts, len(layers)]
    parts = [torch.nn.Sequential(*layers[a:b]) for a, b in zip(bounds, bounds[1:])]
    stages = [pipelining.PipelineStage(part, i, len(parts), torch.device("cpu"))
              for i, part in enumerate(parts) if i % ranks == rank]

    def loss(logits, target):
        return torch.nn.functional.cross_entropy(logits.flatten(0, -2), target.flatten())

    if schedule_name.startswith("interleaved"):
        schedule = pipelining.ScheduleInterleaved1F1B(stages, MICROBATCHES, loss)
    else:
        kind = {"gpipe": pipelining.ScheduleGPipe, "1f1b": pipelining.Schedule1F1B}[schedule_name]
        schedule = kind(stages[0], MICROBATCHES, loss)
    parameters = [p for stage in stages for p in stage.submod.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=1e-4, momentum=0.9, fused=True)

    def run(count):
        dist.barrier()
        start = time.perf_counter()
        for _ in range(count):
            optimizer.zero_grad()
            if rank == 0:
                schedule.step(x)
            else:
                schedule.step(target=y, losses=[])
            optimizer.step()
        dist.barrier()
        return time.perf_counter() - start

    run(min(steps, 3))
    seconds = run(steps)
    if rank == 0:
        print(json.dumps({"system": "python", "model": name, "schedule": schedule_name, "ranks": ranks,
                          "step_ms": 1e3 * seconds / steps}))
    dist.destroy_process_group()


def summarise(path):
    runs = {}
    for line in open(path):
        entry = json.loads(line)
        runs.setdefault((entry["model"], entry["schedule"], entry["system"]), []).append(entry["step_ms"])
    print("| model | schedule | trireme, ms | torch.distributed.pipelining, ms | ratio | of the ideal |")
    print("| --- | --- | --- | --- | --- | --- |")
    cell = lambda v: f"{statistics.median(v):.1f} ({min(v):.1f}-{max(v):.1f})"
    for model, schedule, system in sorted(runs):
        if system != "trireme" or schedule == "one rank":
            continue
        ours, theirs = runs[model, schedule, system], runs[model, schedule, "python"]
        chunks = 2 if schedule.startswith("interleaved") else 1
        # Half of one rank's time, and the bubble (p - 1) / (v m) of two ranks (arXiv 2104.04473, section 2.2).
        ideal = [ms / 2 * (1 + 1 / (chunks * MICROBATCHES)) for ms in runs[model, "one rank", "trireme"]]
        print(f"| {model} | {schedule} | {cell(ours)} | {cell(theirs)} | "
              f"{statistics.median(b / a for a, b in zip(ours, theirs)):.2f} | "
              f"{statistics.median(i / a for a, i in zip(ours, ideal)):.2f} |")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="mlp", choices=["mlp", "gpt", "resnet50"])
    parser.add_argument("--schedule", default="1f1b", choices=["gpipe", "1f1b", "interleaved-1f1b"])
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--summary")
    args = parser.parse_args()
    sys.exit(summarise(args.summary) if args.summary else measure(args.model, args.schedule, args.steps))
