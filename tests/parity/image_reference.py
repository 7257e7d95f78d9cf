#!/usr/bin/env python3
"""Writes data/image_pillow.safetensors: small PNG and JPEG files, and the pixels that Pillow finds in them
(made with Pillow 13.0 and its libjpeg-turbo 3.2; packages Pillow, numpy, safetensors).

NAME/file is the file, NAME/pixels u8 (3, height, width), as Image.open(file).convert("RGB") has them: what the
default loader of torchvision's ImageFolder returns. Grey of 16 bits is the exception: Pillow converts it by
cutting values at 255, which leaves everything white; here it is the high byte of the values that Pillow reads,
as Pillow itself takes it from every other image of 16 bits.
"""
import io
import itertools
import pathlib
import struct
import warnings
import zlib

import numpy as np
from PIL import Image
from safetensors.numpy import save_file

WIDTH, HEIGHT = 6, 7  # every pass of an interlaced file has pixels
COLOURS = {"grey": (0, 1), "rgb": (2, 3), "palette": (3, 1), "grey_alpha": (4, 2), "rgba": (6, 4)}  # type, samples
DEPTHS = {"grey": (1, 2, 4, 8, 16), "rgb": (8, 16), "palette": (1, 2, 4, 8), "grey_alpha": (8, 16), "rgba": (8, 16)}
PASSES = ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2))
ORIENTATION = 0x0112


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def samples(num, depth):
    """(HEIGHT, WIDTH, num): spread over all values, with both ends, low bytes unlike high ones."""
    top = (1 << depth) - 1
    values = (np.arange(HEIGHT * WIDTH * num) * 2654435761 >> 7) % (top + 1)
    values[:4] = (0, top, top // 2, top // 2 + 1)
    return values.reshape(HEIGHT, WIDTH, num)


def packed(rows, depth):
    """Scanlines without a filter: one byte 0, then the samples of a row, the first in the highest bits."""
    lines = b""
    for row in rows.reshape(len(rows), -1):
        bits = "".join(f"{value:0{depth}b}" for value in row)
        bits += "0" * (-len(bits) % 8)
        lines += b"\0" + int(bits, 2).to_bytes(len(bits) // 8, "big")
    return lines


def png(colour, depth, interlaced=False, before_palette=b"", after_palette=b"", entries=None):
    kind, num = COLOURS[colour]
    values = samples(num, depth)
    parts = [values[y::dy, x::dx] for x, y, dx, dy in PASSES] if interlaced else [values]
    palette = bytes((37 * i + 11 * c) % 256 for i in range(entries or 1 << depth) for c in (1, 5, 14))
    body = chunk(b"IHDR", struct.pack(">IIBBBBB", WIDTH, HEIGHT, depth, kind, 0, 0, interlaced)) + before_palette
    body += chunk(b"PLTE", palette) if colour == "palette" else b""
    body += after_palette + chunk(b"IDAT", zlib.compress(b"".join(packed(part, depth) for part in parts), 9))
    return b"\x89PNG\r\n\x1a\n" + body + chunk(b"IEND", b"")


def transparency(colour, depth):
    """tRNS: of a palette one value per entry, of the others the one colour that is transparent: a used one."""
    if colour == "palette":
        return chunk(b"tRNS", bytes(90 * i % 256 for i in range(min(1 << depth, 5))))
    return chunk(b"tRNS", b"".join(struct.pack(">H", v) for v in samples(COLOURS[colour][1], depth)[0, 2]))


def pngs():
    for colour, depths in DEPTHS.items():
        for depth in depths:
            name = f"png_{colour}_{depth}"
            yield name, png(colour, depth)
            yield name + "_interlaced", png(colour, depth, interlaced=True)
            if not colour.endswith("a"):
                yield name + "_transparency", png(colour, depth, after_palette=transparency(colour, depth))
    profile = chunk(b"iCCP", b"any\0\0" + zlib.compress(b"not a profile that could be read"))
    ignored = {
        "linear": chunk(b"gAMA", struct.pack(">I", 100000)),
        "gamma": chunk(b"gAMA", struct.pack(">I", 45455)),
        "srgb": chunk(b"sRGB", b"\0"),
        "profile": profile,
        "chromaticities": chunk(b"cHRM", struct.pack(">8I", 31270, 32900, 64000, 33000, 30000, 60000, 15000, 6000)),
        "significant": chunk(b"sBIT", b"\4\4\4"),
    }
    for (what, data), depth in itertools.product(ignored.items(), (8, 16)):
        yield f"png_rgb_{depth}_{what}", png("rgb", depth, before_palette=data)
    yield "png_grey_4_linear", png("grey", 4, before_palette=ignored["linear"])
    yield "png_palette_8_linear", png("palette", 8, before_palette=ignored["linear"])
    yield "png_rgba_16_linear", png("rgba", 16, before_palette=ignored["linear"])
    yield "png_palette_4_short", png("palette", 4, entries=9)  # values beyond it are black
    background = chunk(b"bKGD", struct.pack(">3H", 255, 0, 255))
    yield "png_rgba_8_background", png("rgba", 8, before_palette=background)


def jpeg(mode, **options):
    num = len(Image.new(mode, (1, 1)).getbands())
    y, x, c = np.mgrid[0:19, 0:21, 0:num]
    values = ((x * (7 + c) + y * (13 - 3 * c) + 40 * c) % 256).astype(np.uint8)
    file = io.BytesIO()
    Image.fromarray(values if num > 1 else values[:, :, 0], mode).save(file, "JPEG", quality=90, **options)
    return file.getvalue()


def with_transform(data, transform):
    """The same file, its Adobe marker saying another transformation of colours: 0 CMYK, 2 YCCK."""
    place = data.index(b"Adobe") + 11
    return data[:place] + bytes([transform]) + data[place + 1:]


def jpegs():
    yield "jpeg_444", jpeg("RGB", subsampling="4:4:4")
    yield "jpeg_420", jpeg("RGB", subsampling="4:2:0")
    yield "jpeg_progressive", jpeg("RGB", progressive=True)
    yield "jpeg_without_transform", jpeg("RGB", keep_rgb=True)
    yield "jpeg_grey", jpeg("L")
    yield "jpeg_grey_progressive", jpeg("L", progressive=True)
    yield "jpeg_cmyk", jpeg("CMYK")
    yield "jpeg_ycck", with_transform(jpeg("CMYK"), 2)
    exif = Image.Exif()
    exif[ORIENTATION] = 6  # a quarter turn, which the loader leaves to do
    yield "jpeg_orientation", jpeg("RGB", exif=exif)


def pixels(data):
    image = Image.open(io.BytesIO(data))
    if image.mode == "I;16":
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    return np.ascontiguousarray(np.asarray(image.convert("RGB")).transpose(2, 0, 1))


def main():
    warnings.simplefilter("ignore")  # of palettes with transparency
    tensors = {}
    for name, data in itertools.chain(pngs(), jpegs()):
        tensors[name + "/file"] = np.frombuffer(data, np.uint8)
        tensors[name + "/pixels"] = pixels(data)
    save_file(tensors, pathlib.Path(__file__).parent / "data/image_pillow.safetensors")


if __name__ == "__main__":
    main()
