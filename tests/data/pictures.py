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
    """Writes pictures under these names, each another; returns the folder."""
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
    head = b"IHDR" + struct.pack(">2I5B", width, height, 8, 2, 0, 0, 0)
    chunk = struct.pack(">I", 13) + head + struct.pack(">I", zlib.crc32(head))
    return encoded(picture())[:8] + chunk + struct.pack(">I4s", 1000, b"IDAT")
