#!/usr/bin/env python3
"""Python's side of the safetensors parity tests (package safetensors with torch).

make             writes data/safetensors_python.safetensors
check FILE       exits 0 when FILE, written by the C++ test, holds exactly the same tensors and metadata
"""
import pathlib
import sys

import torch
from safetensors import safe_open
from safetensors.torch import save_file

METADATA = {"made by": "safetensors", "quote": 'a "b" \\ \n \u00e4'}


def tensors():
    result = {}
    for name in "float64 float32 float16 bfloat16 int64 int32 int16 int8 uint8 bool".split():
        result[name] = (torch.arange(6) - (0 if name in ("uint8", "bool") else 2)).to(getattr(torch, name)).reshape(2, 3)
    result["no dims"] = torch.tensor(7.5)
    result["no elements"] = torch.zeros(0, 3)
    result["layer.0.weight"] = torch.tensor([[0.1, -0.0], [float("inf"), 1e-40]])
    return result


def check(path):
    expected = tensors()
    with safe_open(path, framework="pt") as file:
        assert file.metadata() == METADATA, file.metadata()
        assert sorted(file.keys()) == sorted(expected), file.keys()
        for name, tensor in expected.items():
            found = file.get_tensor(name)
            assert found.dtype == tensor.dtype and found.shape == tensor.shape, name
            assert found.untyped_storage().tolist() == tensor.untyped_storage().tolist(), name


if __name__ == "__main__":
    if sys.argv[1] == "make":
        save_file(tensors(), pathlib.Path(__file__).parent / "data" / "safetensors_python.safetensors", METADATA)
    else:
        check(sys.argv[2])
