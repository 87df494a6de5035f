"""Small pictures, and files of them."""

import io
import struct
import zipfile
import zlib

import numpy as np
from PIL import Image


def picture(seed=0, size=(6, 4), mode="RGB"):
    """A picture of noise, `size` rows and columns."""
    channels = {"RGB": 3, "RGBA": 4, "L": 1}[mode]
    array = np.random.default_rng(seed).integers(0, 256, (*size, channels), np.uint8)
    return Image.fromarray(array.squeeze())


def encoded(image, form="PNG", **options):
    stream = io.BytesIO()
    image.save(stream, form, **options)
    return stream.getvalue()


def write_folder(path, names, **options):
    """Writes a different picture under each name; returns the folder."""
    for number, name in enumerate(names):
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(encoded(picture(number, **options)))
    return path


def write_zip(path, files):
    """Writes a zip archive of names and contents."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return path


def bomb(width, height):
    """A PNG of some bytes that claims to be large."""
    head = _chunk(b"IHDR", struct.pack(">2I5B", width, height, 8, 2, 0, 0, 0))
    return encoded(picture())[:8] + head + struct.pack(">I4s", 1000, b"IDAT")


def wide_png(*colors, clear=None):
    """A PNG of a row of colors with 16 bits a channel, which Pillow does not write; `clear` is transparent."""
    row = b"".join(struct.pack(">3H", *color) for color in colors)
    return _png(row, len(colors), 16, color=2, clear=clear)


def gray_png(row, width, depth, *, clear):
    """A PNG of a row of gray pixels with `depth` bits each; the value `clear` is transparent."""
    return _png(row, width, depth, color=0, clear=(clear,))


def _png(row, width, depth, *, color, clear):
    head = _chunk(b"IHDR", struct.pack(">2I5B", width, 1, depth, color, 0, 0, 0))
    head += b"" if clear is None else _chunk(b"tRNS", struct.pack(f">{len(clear)}H", *clear))
    return encoded(picture())[:8] + head + _chunk(b"IDAT", zlib.compress(b"\0" + row)) + _chunk(b"IEND", b"")


def tiff(bits, photometric, row):
    """A TIFF of a row of gray pixels with these tags."""
    sizes = {256: 8 * len(row) // bits, 257: 1, 277: 1, 278: 1, 279: len(row)}
    tags = sorted((sizes | {258: bits, 259: 1, 262: photometric, 273: 122}).items())
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags)
    return struct.pack("<2sHIH", b"II", 42, 8, len(tags)) + entries + bytes(4) + row


def _chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
