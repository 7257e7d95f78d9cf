"""Two steps of a GPT with PyTorch's ways to share out what ranks hold, over gloo: one rank of bench/largest_model.sh.

Started with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT set.
    largest_model.py WAY LAYERS      WAY: ddp, zero1 (ZeroRedundancyOptimizer), fsdp2, fsdp2-checkpointed
FSDP2 builds the model on the meta device and makes each rank's part alone, as its tutorial says.
"""
import answer_help  # before all others
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import models
import torch
import torch.distributed as dist
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer

WIDTH, HEADS, BLOCK = 1024, 16, 128


def made(way, layers):
    if not way.startswith("fsdp2"):
        model = torch.nn.parallel.DistributedDataParallel(models.Gpt(layers, HEADS, WIDTH, BLOCK),
                                                          gradient_as_bucket_view=True)
        if way == "zero1":
            return model, ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.AdamW, lr=1e-4,
                                                  fused=True)
        return model, torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    with torch.device("meta"):
        model = models.Gpt(layers, HEADS, WIDTH, BLOCK)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for number, block in enumerate(model.transformer.h):
        if way.endswith("checkpointed"):
            model.transformer.h[number] = block = checkpoint_wrapper(block)
        fully_shard(block, mesh=mesh, reshard_after_forward=True)
    fully_shard(model, mesh=mesh, reshard_after_forward=True)
    model.to_empty(device="cpu")
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter.to_local(), std=0.02)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=False)


if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    model, optimizer = made(sys.argv[1], int(sys.argv[2]))
    for _ in range(2):
        optimizer.zero_grad()
        logits = model(torch.randint(65, (1, BLOCK)))
        torch.nn.functional.cross_entropy(logits.flatten(0, -2), torch.randint(65, (BLOCK,))).backward()
        optimizer.step()
    dist.barrier()
    dist.destroy_process_group()
