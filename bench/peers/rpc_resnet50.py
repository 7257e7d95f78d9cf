"""bench/rpc_resnet50.cpp's work with Python's torch.distributed.rpc (TensorPipe): ResNet-50 in two halves on
two workers, a third calls them. Prints JSON.  rpc_resnet50.py [--splits 1,2,4,8] [--batch N] [--image-size N]
[--repeats N]
"""
import answer_help  # before all others
import argparse
import json
import os
import threading
import time

import torch
import torch.distributed.autograd as dist_autograd
import torch.distributed.rpc as rpc
import torch.multiprocessing as mp
import torch.nn as nn
from torch.distributed.optim import DistributedOptimizer
from torch.distributed.rpc import RRef

from models import resnet50


class Part(nn.Module):
    """What a function of the model computes, with the modules that it uses."""

    def __init__(self, function, **modules):
        super().__init__()
        self.function = function
        for name, module in modules.items():
            setattr(self, name, module)

    def forward(self, values):
        return self.function(values)


def layers_of(model):
    pool = nn.functional.max_pool2d
    stem = Part(lambda images: pool(model.bn1(model.conv1(images)).relu_(), 3, 2, 1), conv1=model.conv1,
                bn1=model.bn1)
    blocks = [block for stage in (model.layer1, model.layer2, model.layer3, model.layer4) for block in stage]
    return [stem, *blocks, Part(lambda values: model.fc(values.mean((2, 3))), fc=model.fc)]


class Shard(nn.Module):
    """Layers [first, end) of ResNet-50, one micro-batch at a time."""

    def __init__(self, first, end, num_classes):
        super().__init__()
        self.lock = threading.Lock()
        self.layers = nn.Sequential(*layers_of(resnet50(num_classes=num_classes))[first:end])

    def forward(self, x_rref):
        x = x_rref.to_here()
        with self.lock:
            return self.layers(x)

    def parameter_rrefs(self):
        return [RRef(p) for p in self.parameters()]


class Pipeline(nn.Module):
    def __init__(self, workers, num_classes):
        super().__init__()
        self.first = rpc.remote(workers[0], Shard, args=(0, 8, num_classes))
        self.second = rpc.remote(workers[1], Shard, args=(8, 18, num_classes))

    def forward(self, xs, splits):
        futures = []
        for x in xs.chunk(splits):
            y = self.first.remote().forward(RRef(x))
            futures.append(self.second.rpc_async().forward(y))
        return torch.cat(torch.futures.wait_all(futures))

    def parameter_rrefs(self):
        return self.first.rpc_sync().parameter_rrefs() + self.second.rpc_sync().parameter_rrefs()


def caller(options):
    model = Pipeline(["worker1", "worker2"], 1000)
    optimizer = DistributedOptimizer(torch.optim.SGD, model.parameter_rrefs(), lr=0.05)
    images = torch.randn(options.batch, 3, options.image_size, options.image_size)
    labels = nn.functional.one_hot(torch.randint(1000, (options.batch,)), 1000).float()
    splits = [int(word) for word in options.splits.split(",")]

    def step(count):
        start = time.perf_counter()
        with dist_autograd.context() as context:
            loss = nn.functional.mse_loss(model(images, count), labels)
            dist_autograd.backward(context, [loss])
            optimizer.step(context)
        return time.perf_counter() - start

    for count in splits:
        step(count)
    seconds = {count: [] for count in splits}
    for _ in range(options.repeats):
        for count in splits:
            seconds[count].append(step(count))
    rows = [{"splits": count, "seconds": sorted(all)[len(all) // 2], "least": min(all), "most": max(all)}
            for count, all in seconds.items()]
    print(json.dumps({"batch": options.batch, "image_size": options.image_size, "rows": rows}))


def run(rank, options):
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ["MASTER_PORT"] = options.port
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // 3))
    rpc.init_rpc(f"worker{rank}", rank=rank, world_size=3,
                 rpc_backend_options=rpc.TensorPipeRpcBackendOptions(num_worker_threads=16, rpc_timeout=300))
    if rank == 0:
        caller(options)
    rpc.shutdown()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--splits", default="1,2,4,8")
    parser.add_argument("--batch", type=int, default=120)
    parser.add_argument("--image-size", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--port", default="29511")
    mp.spawn(run, args=(parser.parse_args(),), nprocs=3)
