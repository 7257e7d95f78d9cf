"""The work of bench/training_step.cpp with PyTorch's DistributedDataParallel over gloo.

Started once per rank with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT set (world size 1: no wrapper).
    training_step.py [--model mlp|cnn|wide|resnet50|gpt|gpt124|resnet50_224] [--precision fp32|bf16]
                     [--optimizer sgd|adamw] [--device cpu|cuda] [--ddp] [--compile] [--channels-last]
                     [--zero 1|2|3] [--steps N]
On a GPU over nccl; --ddp wraps one rank, too.
    training_step.py --summary FILE     medians and ratios of the JSON lines of many runs
    training_step.py --shards FILE      milliseconds per step and memory of each way to share out what ranks hold
    training_step.py --links FILE       milliseconds per step of each compression over each link
    training_step.py --ways FILE        milliseconds per sample of each way in FILE, beside the fastest peer's
"""
import answer_help  # before all others
import argparse
import json
import os
import statistics
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))


def workload(name):
    import models
    import torch
    from torch import nn

    if name == "gpt124":
        return (models.Gpt(layers=12, heads=12, width=768, block=1024, vocabulary=50304), torch.randint(50304, (8, 1024)),
                torch.randint(50304, (8 * 1024,)))
    if name == "resnet50_224":
        return models.resnet50(num_classes=10), torch.randn(64, 3, 224, 224), torch.randint(10, (64,))
    if name == "resnet50":
        return models.resnet50(num_classes=10), torch.randn(8, 3, 64, 64), torch.randint(10, (8,))
    if name == "gpt":
        return models.Gpt(), torch.randint(65, (12, 64)), torch.randint(65, (12 * 64,))
    if name == "wide":
        model = nn.Sequential(*[nn.Linear(2048, 2048) for _ in range(4)])
        return model, torch.randn(8, 2048), torch.randint(2048, (8,))
    if name == "mlp":
        model = nn.Sequential(nn.Flatten(), nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(),
                              nn.Linear(512, 10))
    else:
        model = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.MaxPool2d(2), nn.ReLU(),
                              nn.Conv2d(16, 32, 3, padding=1), nn.MaxPool2d(2), nn.ReLU(), nn.Flatten(),
                              nn.Linear(32 * 7 * 7, 128), nn.ReLU(), nn.Linear(128, 10))
    return model, torch.randn(64, 1, 28, 28), torch.randint(10, (64,))


def shared_out(model, zero):
    """PyTorch's way to each stage of ZeRO: the model and its optimizer."""
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.optim import ZeroRedundancyOptimizer

    if zero == 1:
        model = torch.nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
        return model, ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.SGD, lr=1e-4,
                                              momentum=0.9, fused=True)
    mesh = init_device_mesh("cpu", (torch.distributed.get_world_size(),))
    for layer in model.children():
        if any(True for _ in layer.parameters()):
            fully_shard(layer, mesh=mesh, reshard_after_forward=zero == 3)
    fully_shard(model, mesh=mesh, reshard_after_forward=zero == 3)
    # There is no fused kernel for what FSDP2 makes of parameters.
    return model, torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)


def peak_rss_mib():
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def compress(model, compression):
    """PyTorch's hook of that name."""
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

    if compression in ("fp16", "bf16"):
        hook = default_hooks.fp16_compress_hook if compression == "fp16" else default_hooks.bf16_compress_hook
        model.register_comm_hook(None, hook)
    elif compression == "power-sgd":
        state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=4, start_powerSGD_iter=2)
        model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    elif compression != "none":
        sys.exit(f"PyTorch has no hook {compression}")


def make_optimizer(name, parameters):
    import torch

    if name == "adamw":
        return torch.optim.AdamW(parameters, lr=1e-4, fused=True)
    return torch.optim.SGD(parameters, lr=1e-4, momentum=0.9, fused=True)


def measure(name, steps, precision, compiled, channels_last, zero, compression="none", device="cpu",
            optimizer_name="sgd", wraps=False):
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    rank, ranks = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    wraps = wraps or ranks > 1
    model, x, y = workload(name)
    model, x, y = model.to(device), x.to(device), y.to(device)
    if channels_last:
        model, x = model.to(memory_format=torch.channels_last), x.contiguous(memory_format=torch.channels_last)
    if wraps:
        for variable, value in (("RANK", "0"), ("WORLD_SIZE", "1"), ("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", "0")):
            os.environ.setdefault(variable, value)
        dist.init_process_group("gloo" if device == "cpu" else "nccl")
    before_mib = peak_rss_mib()
    if ranks > 1 and zero > 0:
        model, optimizer = shared_out(model, zero)
    elif wraps:
        model = torch.nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
        compress(model, compression)
    if compiled:
        model = torch.compile(model)
    if zero == 0:
        optimizer = make_optimizer(optimizer_name, model.parameters())

    def wait():
        if device != "cpu":
            torch.cuda.synchronize()
        if ranks > 1:
            dist.barrier()

    def run(count):
        wait()
        start = time.perf_counter()
        for _ in range(count):
            optimizer.zero_grad()
            with torch.autocast(device, torch.bfloat16, enabled=precision == "bf16"):
                logits = model(x)
            torch.nn.functional.cross_entropy(logits.float().flatten(0, -2), y).backward()
            optimizer.step()
        wait()
        return time.perf_counter() - start

    run(min(steps, 5))
    seconds = run(steps)
    if rank == 0:
        system = "python" + " ddp" * (wraps and ranks == 1) + " compiled" * compiled + " channels_last" * channels_last
        print(json.dumps({"system": system, "model": label(name, precision), "ranks": ranks, "steps": steps, "device": device, "optimizer": optimizer_name,
                          "zero": zero, "compression": compression, "step_ms": 1e3 * seconds / steps, "grown_mib": peak_rss_mib() - before_mib,
                          "samples_per_s": len(x) * steps * ranks / seconds}))
    if wraps:
        dist.destroy_process_group()


def label(name, precision):
    return name if precision == "fp32" else f"{name} {precision}"


def compare_shards(path):
    runs = {}
    for line in open(path):
        if line.startswith("{"):
            entry = json.loads(line)
            runs.setdefault((entry["model"], entry["zero"], entry["system"]), []).append(entry)
    cell = lambda v: f"{statistics.median(v):.1f} ({min(v):.1f}-{max(v):.1f})"
    of = lambda key, field: [entry[field] for entry in runs[key]]
    print("| model | zero | Trireme, ms per step | of zero 0 | grown by MiB | PyTorch, ms per step | ratio | grown by MiB |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for model, zero in sorted({key[:2] for key in runs}):
        ours, theirs = (model, zero, "trireme"), (model, zero, "python")
        plain = of((model, 0, "trireme"), "step_ms")
        of_plain = statistics.median(a / b for a, b in zip(of(ours, "step_ms"), plain))
        ratio = statistics.median(b / a for a, b in zip(of(ours, "step_ms"), of(theirs, "step_ms")))
        print(f"| {model} | {zero} | {cell(of(ours, 'step_ms'))} | {of_plain:.2f} "
              f"| {statistics.median(of(ours, 'grown_mib')):.0f} | {cell(of(theirs, 'step_ms'))} | {ratio:.2f} "
              f"| {statistics.median(of(theirs, 'grown_mib')):.0f} |")


def compare_links(path):
    runs = {}
    for line in open(path):
        link, _, rest = line.partition(" ")
        if rest.startswith("{"):
            entry = json.loads(rest)
            # Without a word on the scope where it is that by default: PyTorch has none.
            scope = entry.get("scope", "auto")
            way = entry["compression"] if scope == "auto" else entry["compression"] + ", " + scope
            runs.setdefault((entry["model"], link, way), {}).setdefault(entry["system"], []).append(entry)
    cell = lambda entries: "{:.1f} ({:.1f}-{:.1f})".format(
        statistics.median(e["step_ms"] for e in entries), *(f(e["step_ms"] for e in entries) for f in (min, max)))
    print("| model | link | compression | Trireme, ms per step | MB on the wire | faster than uncompressed "
          "| PyTorch, ms per step | ratio |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for (model, link, compression), systems in runs.items():
        ours, theirs = systems["trireme"], systems.get("python")
        plain = next(of["trireme"] for key, of in runs.items() if key[2].split(",")[0] == "none" and key[:2] == (model, link))
        gain = statistics.median(b["step_ms"] / a["step_ms"] for a, b in zip(ours, plain))
        ratio = theirs and statistics.median(b["step_ms"] / a["step_ms"] for a, b in zip(ours, theirs))
        print(f"| {model} | {link} | {compression} | {cell(ours)} | {statistics.median(e['wire_mb'] for e in ours):.2f} "
              f"| {gain:.2f} | {cell(theirs) if theirs else ''} | {f'{ratio:.2f}' if theirs else ''} |")


def compare_ways(path):
    runs = {}
    for line in open(path):
        if line.startswith("{"):
            entry = json.loads(line)
            way = " ".join([entry["system"], *filter(None, [entry.get("convolution")])])
            runs.setdefault(way, []).append(1e3 / entry["samples_per_s"])
    peer = min((statistics.median(v), way) for way, v in runs.items() if way.startswith("python"))[1]
    print("| way | ms per sample | of the fastest peer's |")
    print("| --- | --- | --- |")
    for way, values in runs.items():
        ratio = statistics.median(a / b for a, b in zip(values, runs[peer]))
        print(f"| {way} | {statistics.median(values):.1f} ({min(values):.1f}-{max(values):.1f}) | {ratio:.2f} |")


def summarise(path):
    runs = {}
    for line in open(path):
        if line.startswith("{"):
            entry = json.loads(line)
            runs.setdefault((entry["model"], entry["system"], entry["ranks"]), []).append(entry["samples_per_s"])
    print("| model | trireme, samples/s | Python DDP over gloo | ratio | of two processes |")
    print("| --- | --- | --- | --- | --- |")
    for model in sorted({key[0] for key in runs}):
        ours, theirs = runs[model, "trireme", 2], runs[model, "python", 2]
        alone = runs[model, "trireme", 1]
        cell = lambda v: f"{statistics.median(v):.0f} ({min(v):.0f}-{max(v):.0f})"
        ratio = statistics.median(a / b for a, b in zip(ours, theirs))
        share = statistics.median(a / (b + c) for a, b, c in zip(ours, alone[::2], alone[1::2]))
        print(f"| {model} | {cell(ours)} | {cell(theirs)} | {ratio:.2f} | {share:.2f} |")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="mlp", choices=["mlp", "cnn", "wide", "resnet50", "gpt", "gpt124", "resnet50_224"])
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--precision", default="fp32", choices=["fp32", "bf16"])
    parser.add_argument("--optimizer", default="sgd", choices=["sgd", "adamw"])
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--ddp", action="store_true")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--channels-last", action="store_true")
    parser.add_argument("--zero", type=int, default=0, choices=range(4))
    parser.add_argument("--compression", default="none")
    parser.add_argument("--links")
    parser.add_argument("--summary")
    parser.add_argument("--shards")
    parser.add_argument("--ways")
    args = parser.parse_args()
    if args.links:
        sys.exit(compare_links(args.links))
    if args.shards:
        sys.exit(compare_shards(args.shards))
    if args.summary or args.ways:
        sys.exit(summarise(args.summary) if args.summary else compare_ways(args.ways))
    measure(args.model, args.steps, args.precision, args.compile, args.channels_last, args.zero,
            args.compression, args.device, args.optimizer, args.ddp)
