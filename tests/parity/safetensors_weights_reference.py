#!/usr/bin/env python3
"""Python's side of the parity tests of `trireme checkpoint`: files of torch.save, and what is exported.

make FILE        writes torch.save(dict(state_dict)) of a small model, as people have it (data/torch_save.pt)
makeordered FILE the same without dict(): a collections.OrderedDict with its _metadata
check FILE STEP  exits 0 when FILE, exported by the C++ test, opens with safetensors and loads into that model
"""
import sys

import torch
from safetensors import safe_open
from safetensors.torch import load_file


class Model(torch.nn.Module):
    """Parameters, a buffer of whole numbers, half precision, a transposed and a tied weight."""

    def __init__(self):
        super().__init__()
        self.fc1 = torch.nn.Linear(3, 2)
        self.norm = torch.nn.BatchNorm1d(2)
        self.half = torch.nn.Linear(2, 2).to(torch.bfloat16)
        self.tied = torch.nn.Linear(3, 2)
        self.tied.weight = self.fc1.weight
        self.register_buffer("turned", torch.zeros(2, 3).t())


def model():
    result = Model()
    with torch.no_grad():
        for position, (_, tensor) in enumerate(sorted(result.state_dict().items())):
            tensor.copy_((torch.arange(tensor.numel()) + position).reshape(tensor.shape))
    return result


def check(path, step):
    with safe_open(path, framework="pt") as file:
        assert file.metadata() == {"format": "pt", "model": "mlp", "run": "parity", "step": step}, file.metadata()
    expected = model().state_dict()
    found = load_file(path)
    assert sorted(found) == sorted(expected), sorted(found)
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype and torch.equal(found[name], tensor), name
    Model().load_state_dict(found)


if __name__ == "__main__":
    if sys.argv[1] == "make":
        torch.save(dict(model().state_dict()), sys.argv[2])
    elif sys.argv[1] == "makeordered":
        torch.save(model().state_dict(), sys.argv[2])
    else:
        check(sys.argv[2], sys.argv[3])
