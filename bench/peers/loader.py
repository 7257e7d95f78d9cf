#!/usr/bin/env python3
"""torch.utils.data.DataLoader over the files that bench_loader reads, with the same transforms, for a consumer that
does nothing but take batches.

  loader.py --data fashion_mnist|text|image_folder --path P [--workers N] [--block B] [--seconds S]
  loader.py --make-images FOLDER     writes JPEG files to load: 2 classes, 256 images of 500 x 375
  loader.py --summary FILE           a table of medians, spreads and ratios of lines of JSON
"""
import answer_help  # before all others
import argparse
import collections
import gzip
import json
import os
import pathlib
import statistics
import time

import numpy
import torch
from torch.utils.data import DataLoader, Dataset

FASHION = pathlib.Path("/usr/share/datasets/fashion-mnist")


class Idx(Dataset):
    """As torchvision's MNIST with ToTensor and Normalize, but for the detour over a Pillow image."""

    def __init__(self, folder):
        def values(name, offset):
            path = folder / name
            data = gzip.open(f"{path}.gz").read() if not path.exists() else path.read_bytes()
            return numpy.frombuffer(data, numpy.uint8, offset=offset)

        self.images = torch.from_numpy(values("train-images-idx3-ubyte", 16).copy()).view(-1, 28, 28)
        self.labels = torch.from_numpy(values("train-labels-idx1-ubyte", 8).astype(numpy.int64))

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        image = self.images[index].unsqueeze(0).to(torch.float32).div_(255)
        return image.sub_(0.2860).div_(0.3530), self.labels[index]


class Text(Dataset):
    """As nanoGPT takes windows of a memory-mapped file of tokens."""

    def __init__(self, path, block):
        text = numpy.fromfile(path, numpy.uint8)
        codes = numpy.zeros(256, numpy.uint16)
        codes[numpy.unique(text)] = numpy.arange(len(numpy.unique(text)), dtype=numpy.uint16)
        self.tokens = codes[text[: len(text) * 9 // 10]]
        self.block = block

    def __len__(self):
        return len(self.tokens) - self.block

    def __getitem__(self, index):
        window = torch.from_numpy(self.tokens[index : index + self.block + 1].astype(numpy.int64))
        return window[:-1], window[1:]


class Images(Dataset):
    """As torchvision's ImageFolder with Resize(224), CenterCrop(224), ToTensor and Normalize."""

    def __init__(self, folder):
        classes = sorted(path for path in folder.iterdir() if path.is_dir())
        files = [(path, number) for number, each in enumerate(classes) for path in sorted(each.iterdir())]
        self.files = [file for number, file in enumerate(files) if number % 10 != 9]
        self.mean = torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1)
        self.std = torch.tensor([0.229, 0.224, 0.225]).view(3, 1, 1)

    def __len__(self):
        return len(self.files)

    def __getitem__(self, index):
        from PIL import Image

        path, label = self.files[index]
        with open(path, "rb") as file:
            image = Image.open(file).convert("RGB")
        scale = 224 / min(image.size)
        image = image.resize((round(image.width * scale), round(image.height * scale)), Image.BILINEAR)
        left, top = (image.width - 224) // 2, (image.height - 224) // 2
        image = image.crop((left, top, left + 224, top + 224))
        pixels = torch.from_numpy(numpy.array(image)).permute(2, 0, 1).contiguous().to(torch.float32).div(255)
        return (pixels - self.mean) / self.std, label


def make_images(folder):
    from PIL import Image

    random = numpy.random.default_rng(1)
    for number in range(512):
        into = folder / f"class{number % 2}"
        into.mkdir(parents=True, exist_ok=True)
        coarse = Image.fromarray(random.integers(0, 256, (24, 32, 3), numpy.uint8))
        detail = random.integers(-12, 12, (375, 500, 3))
        image = numpy.clip(numpy.array(coarse.resize((500, 375), Image.BICUBIC)) + detail, 0, 255)
        Image.fromarray(image.astype(numpy.uint8)).save(into / f"{number:04}.jpg", quality=90)


def load(arguments):
    path = pathlib.Path(arguments.path or FASHION)
    samples = {
        "fashion_mnist": lambda: Idx(path),
        "text": lambda: Text(path, arguments.block),
        "image_folder": lambda: Images(path),
    }[arguments.data]()
    opened = time.perf_counter()
    loader = DataLoader(samples, arguments.batch, shuffle=True, num_workers=arguments.workers,
                        persistent_workers=arguments.workers > 0)
    first = taken = began = 0
    while True:
        for batch in loader:
            now = time.perf_counter()
            if not first:
                first, began = now - opened, now
                continue
            taken += len(batch[1])
            if now - began >= arguments.seconds:
                rate = taken / (now - began)
                print(json.dumps({"system": "torch", "data": arguments.data, "workers": arguments.workers,
                                  "samples_per_s": rate, "first_batch_ms": 1e3 * first}), flush=True)
                os._exit(0)


def summary(path):
    rows = collections.defaultdict(list)
    for line in map(json.loads, open(path)):
        rows[line["data"], line["system"], line["workers"]].append(line)

    def median(lines, what):
        return statistics.median(line[what] for line in lines if what in line) if what in lines[0] else 0

    print("| data | system | workers | samples/s (median) | least to most | of torch's best in one process | first batch (ms) |")
    print("| --- | --- | ---: | ---: | ---: | ---: | ---: |")
    for (data, system, workers), lines in rows.items():
        rates = [line["samples_per_s"] for line in lines]
        peers = rows.get((data, "torch", 0))
        ratio = f"{statistics.median(rates) / median(peers, 'samples_per_s'):.2f}" if peers else ""
        first = f"{median(lines, 'first_batch_ms'):.1f}" if "first_batch_ms" in lines[0] else ""
        print(f"| {data} | {system} | {workers} | {statistics.median(rates):,.0f} | "
              f"{min(rates):,.0f} to {max(rates):,.0f} | {ratio} | {first} |")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", default="fashion_mnist")
    parser.add_argument("--path")
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--block", type=int, default=256)
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--make-images")
    parser.add_argument("--summary")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.make_images:
        make_images(pathlib.Path(arguments.make_images))
    elif arguments.summary:
        summary(arguments.summary)
    else:
        load(arguments)
