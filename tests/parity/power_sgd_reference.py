#!/usr/bin/env python3
"""Makes data/power_sgd.safetensors: 5 steps of PyTorch's PowerSGD hook on two ranks (torch 2.13.0, safetensors).

The hook runs as it is (torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook), on ranks that are threads of
one process. Its buckets hold the two gradients of a step, which are compressed from the first step on, with warm
start and error feedback. The file holds each rank's gradients ("gradient/RANK/NAME", leading dim = step), what
both ranks got ("reduced/NAME"), and the factors that the first step began with ("q/NAME"), drawn by PyTorch.
"""
import pathlib
import threading

import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as hook
from torch.testing._internal.distributed import multi_threaded_pg as threaded

STEPS, RANKS, RANK_OF_MATRICES = 5, 2, 2
SHAPES = {"linear": (24, 20), "conv": (10, 3, 4, 4)}
FOLDER = pathlib.Path(__file__).parent / "data"


class Bucket:
    """What the hook asks of a dist.GradBucket."""

    def __init__(self, gradients):
        self.flat = torch.cat([g.flatten() for g in gradients])
        self.parts = [p.view(g.shape) for p, g in zip(self.flat.split([g.numel() for g in gradients]), gradients)]

    def buffer(self):
        return self.flat

    def gradients(self):
        return self.parts

    def index(self):
        return 0

    def is_last(self):
        return True


def run(rank, store, gradients, result):
    dist.init_process_group("threaded", rank=rank, world_size=RANKS, store=store)
    state = hook.PowerSGDState(dist.group.WORLD, matrix_approximation_rank=RANK_OF_MATRICES, start_powerSGD_iter=2,
                               min_compression_rate=1, random_seed=7)
    state.iter = 2  # behind the steps that are all-reduced
    for step in range(STEPS):
        bucket = Bucket([gradients[name][rank][step] for name in SHAPES])
        if step == 0:
            keep_first_factors(rank, result)
        reduced = hook.powerSGD_hook(state, bucket).wait()
        reduced = reduced[0] if isinstance(reduced, (list, tuple)) else reduced
        for name, part in zip(SHAPES, reduced.split([torch.Size(s).numel() for s in SHAPES.values()])):
            result.setdefault(f"reduced/{rank}/{name}", []).append(part.view(SHAPES[name]).clone())
    dist.destroy_process_group()


def keep_first_factors(rank, result):
    """Draws them as the hook will, which seeds its generator alike on all ranks."""
    if rank != 0:
        return
    original = hook._orthogonalize

    def recorded(matrices, epsilon=0):
        original(matrices, epsilon=epsilon)
        known = result.setdefault("q", [])
        if threading.get_ident() == owner and len(known) < len(SHAPES):
            known.append(matrices.clone())

    owner = threading.get_ident()
    hook._orthogonalize = recorded


def main():
    torch.manual_seed(5)
    gradients = {name: torch.randn(RANKS, STEPS, *shape) for name, shape in SHAPES.items()}
    result = {}
    torch._C._distributed_c10d._set_thread_isolation_mode(True)
    threaded._install_threaded_pg()
    store = dist.HashStore()
    threads = [threading.Thread(target=run, args=(r, store, gradients, result)) for r in range(RANKS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    tensors = {}
    for number, name in enumerate(SHAPES):
        reduced = torch.stack(result[f"reduced/0/{name}"])
        assert torch.equal(reduced, torch.stack(result[f"reduced/1/{name}"])), "ranks differ"
        tensors["reduced/" + name] = reduced
        tensors["q/" + name] = result["q"][number][0].contiguous()
        for rank in range(RANKS):
            tensors[f"gradient/{rank}/{name}"] = gradients[name][rank].contiguous()
    save_file(tensors, FOLDER / "power_sgd.safetensors", {"made_with": "torch " + torch.__version__})


if __name__ == "__main__":
    main()
