"""The work of bench/rpc_calls.cpp with torch.distributed.rpc over TensorPipe.

    rpc_calls.py [--way shm|tcp] [--passes N] [--smoke]
    rpc_calls.py --summary FILE     medians and ratios of the JSON lines of many runs

shm is TensorPipe as it comes, which takes shared memory and process_vm_readv where both are there; tcp has
sockets alone.
"""
import answer_help  # before all others
import argparse
import collections
import json
import multiprocessing
import socket
import statistics
import sys
import time

IN_FLIGHT = 8
SMALL, LARGE = 4 << 10, 4 << 20
# call, bytes, calls one by one, calls of which several are on their way
CASES = [
    ("empty", 0, 1000, 5000),
    ("take", SMALL, 1000, 5000),
    ("echo", SMALL, 1000, 5000),
    ("take", LARGE, 60, 120),
    ("echo", LARGE, 60, 120),
]


def empty():
    pass


def take(tensor):
    return tensor.numel()


def echo(tensor):
    return tensor


def join(rank, way, port):
    import warnings

    warnings.filterwarnings("ignore")
    import torch
    import torch.distributed.rpc as rpc

    torch.set_num_threads(1)
    only_sockets = {"_transports": ["uv"], "_channels": ["basic"]} if way == "tcp" else {}
    options = rpc.TensorPipeRpcBackendOptions(init_method=f"tcp://127.0.0.1:{port}", **only_sockets)
    rpc.init_rpc(("caller", "server")[rank], rank=rank, world_size=2, rpc_backend_options=options)
    return torch, rpc


def serve(way, port):
    _, rpc = join(1, way, port)
    rpc.shutdown()


def measure(begin, one_by_one, many, size):
    for _ in range(max(one_by_one // 10, 2)):
        begin().wait()
    times = []
    for _ in range(one_by_one):
        start = time.perf_counter()
        begin().wait()
        times.append(1e6 * (time.perf_counter() - start))
    times.sort()
    waiting = collections.deque()
    start = time.perf_counter()
    for _ in range(many):
        if len(waiting) == IN_FLIGHT:
            waiting.popleft().wait()
        waiting.append(begin())
    for each in waiting:
        each.wait()
    calls_per_s = many / (time.perf_counter() - start)
    return {"median_us": times[len(times) // 2], "p95_us": times[len(times) * 95 // 100],
            "calls_per_s": calls_per_s, "gb_per_s": 1e-9 * size * calls_per_s}


def run(way, passes, smoke):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = multiprocessing.get_context("spawn").Process(target=serve, args=(way, port), daemon=True)
    server.start()
    torch, rpc = join(0, way, port)
    functions = {"empty": empty, "take": take, "echo": echo}
    for _ in range(passes):
        for call, size, one_by_one, many in CASES:
            if smoke:
                one_by_one = many = 20
            arguments = () if call == "empty" else (torch.ones(size // 4),)
            begin = lambda: rpc.rpc_async("server", functions[call], args=arguments)
            line = measure(begin, one_by_one, many, size)
            line.update(system="python", way=way, call=call, bytes=size)
            print(json.dumps(line), flush=True)
    rpc.shutdown()
    server.join()


def summarise(path):
    entries = [json.loads(line) for line in open(path)]

    def values(system, way, call, size, key):
        return [e[key] for e in entries
                if (e["system"], e["way"], e["call"], e["bytes"]) == (system, way, call, size)]

    def cell(of, digits):
        return f"{statistics.median(of):.{digits}f} ({min(of):.{digits}f}-{max(of):.{digits}f})"

    def ratios(above, below):
        return cell([a / b for a, b in zip(above, below)], 2)

    names = {"empty": "empty", "take": "argument", "echo": "argument and result"}
    print("| one call at a time | way | Trireme, us | p95 | Python, us | p95 | Trireme / Python |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for call, size, _, _ in CASES:
        for way in ("shm", "tcp"):
            ours, peer = (values(system, way, call, size, "median_us") for system in ("trireme", "python"))
            p95 = [statistics.median(values(system, way, call, size, "p95_us")) for system in ("trireme", "python")]
            title = names[call] + (f", {size >> 10} KiB" if size else "")
            print(f"| {title} | {way} | {cell(ours, 0)} | {p95[0]:.0f} | {cell(peer, 0)} | {p95[1]:.0f} | "
                  f"**{ratios(ours, peer)}** |")
    print()
    print("| eight on their way | way | | Trireme | Python | Trireme / Python |")
    print("| --- | --- | --- | --- | --- | --- |")
    for call, size, _, _ in CASES:
        for way in ("shm", "tcp"):
            key, unit, digits = ("gb_per_s", "GB/s", 2) if size else ("calls_per_s", "calls/s", 0)
            ours, peer = (values(system, way, call, size, key) for system in ("trireme", "python"))
            title = names[call] + (f", {size >> 10} KiB" if size else "")
            print(f"| {title} | {way} | {unit} | {cell(ours, digits)} | {cell(peer, digits)} | "
                  f"**{ratios(ours, peer)}** |")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--way", choices=("shm", "tcp"), default="shm")
    parser.add_argument("--passes", type=int, default=5)
    parser.add_argument("--smoke", action="store_true")
    parser.add_argument("--summary")
    args = parser.parse_args()
    sys.exit(summarise(args.summary) if args.summary else run(args.way, args.passes, args.smoke))
