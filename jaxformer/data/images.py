"""Labeled images from folders, zip archives and IDX files, decoded by Pillow. Nothing is ever extracted to disk."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import io
import os
import pathlib
import stat
import struct
import unicodedata
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Literal

import numpy as np
from PIL import Image, ImageOps

from jaxformer.data.examples import Labeled
from jaxformer.data.idx import is_idx, read_idx
from jaxformer.data.lines import read_lines
from jaxformer.digests import short_digest
from jaxformer.errors import DataError, first_few

try:
    from lzma import LZMAError
except ImportError:  # Python was built without it, and cannot read archives that need it
    LZMAError = OSError

LARGEST_FILE = 1 << 28
"""The largest encoded image in bytes."""
LARGEST_IMAGE = 1 << 26
"""The largest number of pixels of an image; a file of a few bytes can claim billions."""
FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
"""Pillow's names of the formats that are read. Others, such as EPS, would start programs."""
SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
"""The file name extensions of images in folders and archives; other files are ignored."""
Resize = Literal["refuse", "fit"]
"""The treatment of an image of another size: an error, or scaling until it covers the size and a center crop."""

_BROKEN = (
    OSError,
    SyntaxError,
    ValueError,
    EOFError,
    LookupError,
    TypeError,
    OverflowError,
    MemoryError,
    struct.error,
    zlib.error,
    LZMAError,
    Warning,  # where warnings are errors
)
"""The errors of Pillow and zipfile for broken files."""


@dataclasses.dataclass(frozen=True, eq=False)
class ImageStore:
    """A collection of images; `read_images` opens one."""

    place: str
    """The path of the store."""
    names: tuple[str, ...]
    """The name of each image below the store, in order; in an IDX file its number, from 1."""
    checksums: tuple[int, ...]
    """The CRC-32 of each image's file, or of its pixels without their shape."""
    reading: Callable[[], contextlib.AbstractContextManager[Callable[[int], Image.Image]]]
    """Opens the store and yields a thread-safe function that decodes an image. It raises `DataError` with the path of
    the image."""
    shape: tuple[int, ...] = ()
    """The shape of each image in an IDX file, whose pixels are those of another image in another shape."""


def _folder(path: pathlib.Path) -> ImageStore:
    names = _nonempty(_walk(path), path)
    checksums = tuple(zlib.crc32(read_file(path / name)) for name in names)

    def read(i: int) -> Image.Image:
        data, place = read_file(path / names[i]), str(path / names[i])
        if zlib.crc32(data) != checksums[i]:  # decoded images are cached under the checksum
            raise DataError(f"{place} has changed since it was first read; start again")
        return decode(data, place)

    return ImageStore(str(path), names, checksums, lambda: contextlib.nullcontext(read))


def _archive(path: pathlib.Path, folder: str) -> ImageStore:
    """Opens the images of a zip archive below a folder in it."""
    with _zip(path) as archive:
        entries = {entry.filename.removeprefix("./"): entry for entry in archive.infolist()}
        if len(entries) < len(archive.infolist()):
            raise DataError(f"{path} has two files of one name")
    for name, entry in entries.items():
        if name.startswith(("/", "\\")) or ".." in name.replace("\\", "/").split("/") or name[1:2] == ":":
            raise DataError(f"{path} has a file named {name!r}, which leads out of the archive")
        if _is_image(name) and entry.flag_bits & 1:
            raise DataError(f"{path}/{name} is encrypted")
        if _is_image(name) and entry.file_size > LARGEST_FILE:
            raise DataError(f"{path}/{name} has more than {LARGEST_FILE:,} bytes")
    start = f"{folder}/".removeprefix("/")
    inside = {name.removeprefix(start): entry for name, entry in entries.items() if name.startswith(start)}
    names = _nonempty(filter(_is_image, sorted(inside)), path / folder)

    @contextlib.contextmanager
    def reading() -> Iterator[Callable[[int], Image.Image]]:
        with _zip(path) as archive:

            def read(i: int) -> Image.Image:
                place = f"{path}/{start}{names[i]}"
                try:
                    data = archive.read(inside[names[i]])
                except (zipfile.BadZipFile, NotImplementedError, RuntimeError, *_BROKEN) as error:
                    raise DataError(f"{place} cannot be read: {error}") from error
                return decode(data, place)

            yield read

    return ImageStore(str(path / folder), names, tuple(inside[name].CRC for name in names), reading)


def _array(path: pathlib.Path) -> ImageStore:
    """Opens the images of an IDX file, uint8 ``[N, h, w]`` or ``[N, h, w, 3]``."""
    array = read_idx(path)
    if array.ndim not in (3, 4) or (array.ndim == 4 and array.shape[3] != 3) or 0 in array.shape:
        raise DataError(f"{path} must hold images [N, h, w] or [N, h, w, 3], got {list(array.shape)}")
    names = tuple(str(i + 1) for i in range(len(array)))
    reading = lambda: contextlib.nullcontext(lambda i: Image.fromarray(array[i]))
    return ImageStore(str(path), names, tuple(map(zlib.crc32, array)), reading, array.shape[1:])


@dataclasses.dataclass(frozen=True, eq=False)
class LabeledImages(Labeled):
    """Some images of a store, with their labels."""

    store: ImageStore
    indices: tuple[int, ...]
    labels: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.indices)

    @functools.cached_property
    def fingerprint(self) -> str:
        """A hash of every label and of every image's checksum, in order."""
        rows = zip(self.labels, self.indices, strict=True)
        return short_digest(os.fsencode(f"{label}\t{self.store.checksums[i]:08x}\n") for label, i in rows)

    @property
    def classes(self) -> tuple[str, ...]:
        """The labels that occur, sorted: numbers by value, then names."""
        return tuple(sorted(set(self.labels), key=lambda x: (0, int(x), x) if x.isdecimal() else (1, 0, x)))

    def place(self, number: int) -> str:
        """Returns the path of an image, for messages."""
        return f"{self.store.place}/{self.store.names[self.indices[number]]}"

    @property
    def file(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.store.place

    @property
    def contents(self) -> list[str]:
        return [f"{self.store.checksums[i]:08x}" for i in self.indices]

    def take(self, rows: Sequence[int]) -> LabeledImages:
        indices, labels = (tuple(x[i] for i in rows) for x in (self.indices, self.labels))
        return dataclasses.replace(self, indices=indices, labels=labels)


def read_images(path: str | os.PathLike[str]) -> ImageStore:
    """Opens images: a folder, a zip archive, a folder in one (``my.zip/train``), or an IDX file, optionally gzipped.

    Raises:
      DataError: the path does not exist, is of another kind, or holds no image; or an archive is cut off, or has two
        files of one name, names that lead out of it, encrypted files, or files that are too large.
    """
    path = pathlib.Path(path)
    if path.is_dir():
        return _folder(path)
    if path.is_file():
        if zipfile.is_zipfile(path):
            return _archive(path, "")
        if is_idx(path):
            return _array(path)
        with path.open("rb") as stream:
            if stream.read(4) == b"PK\3\4":
                raise DataError(f"{path} is a broken zip archive: its end, which lists the files, is missing")
        raise DataError(f"{path} must be a folder, a zip archive or an IDX file of images")
    for parent in path.parents:
        if parent.is_file() and zipfile.is_zipfile(parent):
            return _archive(parent, path.relative_to(parent).as_posix())
    raise DataError(f"cannot read {path}: there is no such folder, zip archive or IDX file")


def label_images(
    store: ImageStore, labels: str | os.PathLike[str] = "", *, classes: Sequence[str] = (), names: Sequence[str] = ()
) -> LabeledImages:
    """Returns the images of a store with their labels.

    Args:
      labels: an IDX file of numbers, one for each image; or a table, UTF-8, with the name of an image below the store
        and its label in each line, with a tab or a comma between them. By default each image's folder is its label.
      classes: the allowed labels, in Unicode's NFC, which labels are normalized to; any by default.
      names: the labels that the numbers in an IDX file stand for, from 0; by default the numbers are the labels.

    Raises:
      DataError: a label is missing, empty, not UTF-8, has control characters or is not among the classes, or its image
        is missing. The message has the file, and the line or the number.
    """
    if labels and is_idx(labels):
        label_of = dict(enumerate(_numbers(store, labels, classes, names)))
    elif labels:
        label_of = _table(store, labels, classes)
    else:
        label_of = {}
        for i, name in enumerate(store.names):
            _, _, label = name.rpartition("/")[0].rpartition("/")
            if not label:
                raise DataError(
                    f"{store.place}/{name} must lie in a folder named after its class, or have its label in a file, "
                    "--data.train_labels and so on"
                )
            label_of[i] = _checked(label, classes, f"{store.place}/{name}")
    return LabeledImages(store, tuple(label_of), tuple(label_of.values()))


def decode(data: bytes, place: str) -> Image.Image:
    """Decodes an image, upright, in mode L or RGB, with 8 bits per channel.

    16 bits of gray are rounded to 8; of 16 bits of a color, Pillow keeps the upper 8, except in a PPM. Palette colors
    are looked up, a transparent image is placed on white, and previews in a photograph (MPO) are ignored.

    Args:
      place: the path, for messages.

    Raises:
      DataError: it is not an image, broken, of a format or mode that is not read, too large, or an animation.
    """
    try:
        with Image.open(io.BytesIO(data), formats=FORMATS) as image:
            if image.width * image.height > LARGEST_IMAGE:
                raise DataError(
                    f"{place} claims {image.width} x {image.height} pixels; an image has at most {LARGEST_IMAGE:,}"
                )
            if (frames := getattr(image, "n_frames", 1)) > 1 and image.format != "MPO":  # photographs with previews
                raise DataError(f"{place} holds {frames} images; save one of them")
            tags = getattr(image, "tag_v2", {})  # of a TIFF; Pillow neither scales 12 bits nor inverts 16
            if image.mode.startswith("I;16") and (tags.get(258, (16,)) != (16,) or tags.get(262) == 0):
                raise DataError(f"{place} has 12 bits a pixel, or 16 with white as 0; save it with 8, or 16 from black")
            image.load()
            return _plain(ImageOps.exif_transpose(image), image.format, place, data)
    except DataError:
        raise
    except Image.UnidentifiedImageError as error:
        raise DataError(f"{place} is not an image that can be read; the formats are {', '.join(FORMATS)}") from error
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise DataError(f"{place} claims too many pixels; an image has at most {LARGEST_IMAGE:,}") from error
    except _BROKEN as error:
        raise DataError(f"{place} is broken: {str(error) or type(error).__name__}") from error


def pixels(image: Image.Image, shape: tuple[int, int, int], *, resize: Resize, place: str) -> np.ndarray:
    """Returns the pixels of an image that `decode` made, uint8 ``shape = [h, w, C]``; C is 1 (gray) or 3 (RGB).

    Raises:
      DataError: it has another size, which `resize` refuses.
    """
    height, width, num_channels = shape
    if image.size != (width, height):
        if resize == "refuse":
            raise DataError(
                f"{place} is {image.height} x {image.width} pixels, but images must be {height} x {width}; "
                "set the model's image_size, or scale and cut them with --data.resize fit"
            )
        image = ImageOps.fit(image, (width, height), Image.Resampling.BILINEAR)
    return np.asarray(image.convert("L" if num_channels == 1 else "RGB")).reshape(shape)


def read_file(path: str | os.PathLike[str]) -> bytes:
    """Returns the bytes of an encoded image.

    Raises:
      DataError: the file is missing, unreadable, not a regular file, or too large.
    """
    without_waiting = lambda name, flags: os.open(name, flags | os.O_NONBLOCK)  # for the other end of a pipe
    try:
        with open(path, "rb", opener=without_waiting) as stream:
            if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
                raise DataError(f"{path} is not a regular file")
            data = stream.read(LARGEST_FILE + 1)
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from error
    if len(data) > LARGEST_FILE:
        raise DataError(f"{path} has more than {LARGEST_FILE:,} bytes")
    return data


def _plain(image: Image.Image, encoding: str | None, place: str, data: bytes) -> Image.Image:
    if image.mode.startswith("I;16") or (image.mode == "I" and encoding == "PPM"):  # Pillow would cut off at 255
        gray, clear = np.asarray(image).astype(np.uint32), image.info.get("transparency", -1)
        return Image.fromarray(np.where(gray == clear, 255, (gray + 128) // 257).astype(np.uint8))
    if image.mode in ("I", "F"):
        raise DataError(f"{place} has 32 bits a pixel; save it with 8 or 16")
    if encoding == "PNG" and image.mode in ("1", "L", "RGB") and "transparency" in image.info:
        depth, clear = max(1, data[24]), image.info["transparency"]  # the color has the file's bits, the pixels have 8
        scaled = lambda x: x >> 8 if depth == 16 else x * 255 // (2**depth - 1)
        image.info["transparency"] = tuple(map(scaled, clear)) if image.mode == "RGB" else scaled(clear)
    if image.has_transparency_data:
        return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image.convert("RGBA")).convert("RGB")
    return image.convert("L" if image.mode in ("1", "L") else "RGB")


def _walk(folder: pathlib.Path) -> Iterator[str]:
    """Yields the names of images, sorted; linked folders are followed once."""
    seen, names = {folder.resolve()}, []

    def fail(error: OSError) -> None:
        raise DataError(f"cannot read {error.filename}: {error.strerror}") from error

    for root, folders, files in os.walk(folder, followlinks=True, onerror=fail):
        places = {name: pathlib.Path(root) / name for name in folders}
        last = sorted(folders, key=lambda name: (places[name].is_symlink(), name), reverse=True)
        new = {places[name].resolve(): name for name in last}  # of one folder's names, its own or the first link's
        folders[:] = sorted(name for place, name in new.items() if place not in seen)
        seen |= new.keys()
        names += [(pathlib.Path(root) / name).relative_to(folder).as_posix() for name in files]
    yield from sorted(filter(_is_image, names))


def _is_image(name: str) -> bool:
    hidden = any(part.startswith(".") or part == "__MACOSX" for part in name.split("/"))
    return name.lower().endswith(SUFFIXES) and not hidden


def _nonempty(names: Iterator[str], path: str | os.PathLike[str]) -> tuple[str, ...]:
    if not (images := tuple(names)):
        raise DataError(f"{path} holds no image; their names end in {', '.join(SUFFIXES)}")
    return images


def _zip(path: str | os.PathLike[str]) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(path)
    except (zipfile.BadZipFile, NotImplementedError, *_BROKEN) as error:
        raise DataError(f"{path} is a broken zip archive: {error}") from error


def _numbers(
    store: ImageStore, path: str | os.PathLike[str], classes: Sequence[str], names: Sequence[str]
) -> Iterator[str]:
    array = read_idx(path)
    if array.shape != (len(store.names),):
        raise DataError(f"{path} must hold {len(store.names):,} labels, one for each image, got {list(array.shape)}")
    for i, number in enumerate(array.tolist()):
        place = f"{path}, label {i + 1}"
        if names and number >= len(names):
            raise DataError(f"{place}: {number} must be below {len(names)}, the number of classes")
        yield _checked(str(names[number] if names else number), classes, place)


def _table(store: ImageStore, path: str | os.PathLike[str], classes: Sequence[str]) -> Mapping[int, str]:
    numbers, label_of = {name: i for i, name in enumerate(store.names)}, {}
    for line, text in enumerate(read_lines(path), 1):
        if not text.strip():
            continue
        name, separator, label = text.partition("\t" if "\t" in text else ",")
        place = f"{path}, line {line}"
        if not separator:
            raise DataError(f"{place}: there must be the name of an image, a tab or a comma, and a label, got {text!r}")
        if name not in numbers:
            raise DataError(f"{place}: {store.place} has no image {name!r}")
        if numbers[name] in label_of:
            raise DataError(f"{place}: {name!r} has a label already")
        label_of[numbers[name]] = _checked(label.strip(), classes, place)
    if not label_of:
        raise DataError(f"{path} holds no label")
    return label_of


def _checked(label: str, classes: Sequence[str], place: str) -> str:
    label = unicodedata.normalize("NFC", label)  # macOS decomposes the names of folders
    if not label:
        raise DataError(f"{place}: the label is empty")
    if any(unicodedata.category(letter) in ("Cc", "Cs") for letter in label):
        raise DataError(f"{place!r}: the label must be UTF-8 without control characters, got {label!r}")
    if classes and label not in classes:
        raise DataError(f"{place}: the label {label!r} is not one of the classes {first_few(classes, 20)}")
    return label
