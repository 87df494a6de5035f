"""Images are decoded exactly, in every mode; a broken or hostile file gives one error with its place."""

import os
import struct
import zipfile

import numpy as np
import pytest
from PIL import Image

from jaxformer.data.idx import write_idx
from jaxformer.data.images import SUFFIXES, LabeledImages, decode, label_images, pixels, read_file, read_images
from jaxformer.errors import DataError
from tests.data.pictures import bomb, encoded, gray_png, picture, tiff, wide_png, write_folder, write_zip

NAMES = ("cat/a.png", "cat/b.png", "dog/c.png", "dog/deep/cat/d.png")


def arrays(images):
    with images.reading() as read:
        return [np.asarray(read(i)) for i in range(len(images.names))]


@pytest.mark.parametrize("form", ["PNG", "BMP", "PPM", "TIFF", "GIF"])
def test_every_pixel_of_a_lossless_format(form):
    image = picture(mode="L") if form == "GIF" else picture()
    rgb = np.asarray(image.convert("RGB"))
    np.testing.assert_array_equal(pixels(decode(encoded(image, form), ""), (6, 4, 3), resize="refuse", place=""), rgb)


WIDE = np.array([[0, 128, 129, 32768, 65535]], np.uint16)
FADED = np.array([[[10, 20, 30, 255], [10, 20, 30, 0], [0, 0, 0, 51]]], np.uint8)
TURNED = Image.Exif()
TURNED[0x0112] = 6  # to be shown turned by 90 degrees to the right
INDEXED = Image.fromarray(np.array([[0, 1]], np.uint8), "P")
INDEXED.putpalette([10, 20, 30, 0, 0, 0])


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (encoded(Image.fromarray(WIDE)), [[0, 0, 1, 128, 255]]),
        (encoded(Image.fromarray(WIDE), transparency=32768), [[0, 0, 1, 255, 255]]),
        (encoded(Image.fromarray(WIDE), "TIFF"), [[0, 0, 1, 128, 255]]),
        (b"P5 2 1 65535\n" + struct.pack(">2H", 32768, 65535), [[128, 255]]),
        (wide_png((128, 129, 255), (256, 32768, 65535)), [[[0, 0, 0], [1, 128, 255]]]),
        (b"P6 1 1 65535\n" + struct.pack(">3H", 128, 129, 255), [[[0, 1, 1]]]),
        (encoded(Image.fromarray(FADED)), [[[10, 20, 30], [255] * 3, [204] * 3]]),
        (encoded(Image.fromarray(FADED).convert("LA")), [[[18] * 3, [255] * 3, [204] * 3]]),
        (encoded(Image.fromarray(FADED[..., :3]).quantize(4)), FADED[..., :3]),
        (encoded(INDEXED, transparency=1), [[[10, 20, 30], [255] * 3]]),
        (encoded(Image.fromarray(np.array([[True, False]]))), [[255, 0]]),
        (encoded(Image.fromarray(FADED[..., :3]), "PNG", exif=TURNED), FADED[..., :3].swapaxes(0, 1)),
    ],
    ids=[
        "16 bit",
        "16 bit with transparency",
        "16 bit TIFF",
        "16 bit PGM",
        "16 bit RGB",
        "16 bit PPM",
        "RGBA",
        "gray with alpha",
        "palette",
        "clear palette",
        "bilevel",
        "turned",
    ],
)
def test_modes(data, expected):
    np.testing.assert_array_equal(np.asarray(decode(data, "")), np.array(expected, np.uint8))


def test_requested_colors_and_sizes():
    image = Image.fromarray(np.full((4, 8, 3), (255, 0, 0), np.uint8))
    assert (pixels(image, (4, 8, 1), resize="refuse", place="") == 76).all()  # 0.299 of 255
    with pytest.raises(
        DataError, match=r"my\.png is 4 x 8 pixels, but images must be 2 x 2; set the model's image_size, or"
    ):
        pixels(image, (2, 2, 3), resize="refuse", place="my.png")
    left, right = (Image.fromarray(np.repeat(np.array([[0, 100, 200, 40]], np.uint8), n, 0)) for n in (4, 2))
    assert pixels(left, (4, 2, 1), resize="fit", place="")[:, :, 0].tolist() == [[100, 200]] * 4  # the middle
    assert pixels(right, (4, 4, 1), resize="fit", place="").shape == (4, 4, 1)


FRAMES = encoded(picture(), "GIF", save_all=True, append_images=[picture(1), picture(2)])


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "my.png is not an image that can be read; the formats are BMP, GIF, JPEG, PNG"),
        (b"<svg></svg>", "my.png is not an image that can be read"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "my.png is not an image that can be read"),
        (encoded(picture(size=(20, 20)))[:200], "my.png is broken: .*truncated"),
        (encoded(picture(size=(20, 20)), "JPEG")[:-200], "my.png is broken: .*truncated"),
        (bomb(9_000, 9_000), "my.png claims 9000 x 9000 pixels; an image has at most 67,108,864"),
        (bomb(10_000, 10_000), "my.png claims too many pixels; an image has at most 67,108,864"),
        (bomb(60_000, 60_000), "my.png claims too many pixels; an image has at most 67,108,864"),
        (FRAMES, "my.png holds 3 images; save one of them"),
        (encoded(Image.fromarray(np.ones((2, 2), np.float32)), "TIFF"), "my.png has 32 bits a pixel"),
        (tiff(12, 1, b"\x00\x0f\xff"), "my.png has 12 bits a pixel, or 16 with white as 0"),
        (tiff(16, 0, b"\x00\x0f"), "my.png has 12 bits a pixel, or 16 with white as 0"),
    ],
    ids="empty text program png jpeg large larger huge animation float 12 white".split(),
)
def test_unsupported_images_are_refused(data, message):
    with pytest.raises(DataError, match=message):
        decode(data, "my.png")


def test_a_transparent_color_of_a_png_of_any_depth_is_white():
    """The file has it in its own bits, in which 1, 2 and 4 bits of gray reach to 1, 3 and 15."""
    for depth, row in ((1, 0b01_000000), (2, 0b00_01_10_11), (4, 0x5A), (8, 0x5A)):
        width, largest = 8 // depth, 2**depth - 1
        values = [row >> (8 - depth * (i + 1)) & largest for i in range(width)]
        for clear in set(values):
            gray = [255 if value == clear else value * 255 // largest for value in values]
            found = decode(gray_png(bytes([row]), width, depth, clear=clear), "").convert("L")
            assert np.asarray(found).tolist() == [gray]
    colors = [(0x1234,) * 3, (0x3434,) * 3, (0x9999,) * 3]
    found = np.asarray(decode(wide_png(*colors, clear=colors[0]), ""))
    assert found[0, :, 0].tolist() == [255, 0x34, 0x99]


@pytest.mark.parametrize("form", ["PNG", "JPEG", "TIFF", "BMP", "WEBP", "PPM", "GIF"])
def test_damage_gives_an_image_or_a_data_error(form):
    """Any byte is changed, or the file is truncated at any point."""
    data, random = encoded(picture(size=(9, 9)), form), np.random.default_rng(0)
    damaged = [data[:stop] for stop in range(0, len(data), 7)]
    for _ in range(200):
        position, value = int(random.integers(len(data))), int(random.integers(256))
        damaged.append(data[:position] + bytes([value]) + data[position + 1 :])
    messages = []
    for part in damaged:
        try:
            decode(part, "my.file")
        except DataError as error:
            messages.append(str(error))
    assert all(message.startswith("my.file ") for message in messages)
    assert len(messages) >= len(data) // 7 - 4  # the truncated ones, but for a mark at the end


def test_a_folder_and_an_archive_hold_the_same(tmp_path):
    folder = write_folder(tmp_path / "folder", NAMES)
    for name in (".hidden/a.png", "__MACOSX/cat/a.png", "cat/notes.txt"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("no image")
    (folder / "dog" / "linked").symlink_to(folder / "dog")  # a circle
    files = {f"all/{p.relative_to(folder).as_posix()}": p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    write_zip(tmp_path / "my.zip", files | {"other/x/e.png": encoded(picture(9))})
    expected = [np.asarray(picture(number)) for number in range(4)]
    stores = [read_images(folder), read_images(tmp_path / "my.zip" / "all")]
    for store in stores:
        assert store.names == NAMES
        assert all(map(np.array_equal, arrays(store), expected))
        assert label_images(store).labels == ("cat", "cat", "dog", "cat")
    assert stores[0].checksums == stores[1].checksums
    assert len(read_images(tmp_path / "my.zip").names) == 5
    write_zip(tmp_path / "dotted.zip", {f"./{name}": data for name, data in files.items()})
    dotted = read_images(tmp_path / "dotted.zip" / "all")
    assert (dotted.names, dotted.checksums) == (NAMES, stores[0].checksums)  # as written by tar
    assert all(map(np.array_equal, arrays(dotted), expected))
    assert read_images(tmp_path / "my.zip" / "all" / "dog").place == f"{tmp_path}/my.zip/all/dog"


def test_a_photograph_with_previews_of_itself_is_one_image():
    data = encoded(picture(0, (8, 8)), "MPO", save_all=True, append_images=[picture(1, (4, 4))])
    assert decode(data, "").size == (8, 8)


def test_a_linked_folder_is_a_folder(tmp_path):
    write_folder(tmp_path / "elsewhere", ["a.png"])
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "cat").symlink_to(tmp_path / "elsewhere")
    assert label_images(read_images(tmp_path / "images")).labels == ("cat",)


def test_a_folder_is_not_found_again_by_a_link_beside_it(tmp_path):
    write_folder(tmp_path / "images" / "cat", ["a.png"])
    for name in ("bird", "dog"):
        (tmp_path / "images" / name).symlink_to("cat")
    assert read_images(tmp_path / "images").names == ("cat/a.png",)


def test_of_two_links_to_a_folder_the_first_by_name_is_followed(tmp_path, monkeypatch):
    """In any order in which the disk lists them."""
    write_folder(tmp_path / "elsewhere", ["a.png"])
    for name in "ab":
        (tmp_path / "images" / name).mkdir(parents=True)
        (tmp_path / "images" / name / "cat").symlink_to(tmp_path / "elsewhere")
    walk = os.walk

    def turned(*arguments, **options):
        for root, folders, files in walk(*arguments, **options):
            folders.sort(reverse=True)
            yield root, folders, files

    monkeypatch.setattr(os, "walk", turned)
    assert read_images(tmp_path / "images").names == ("a/cat/a.png",)


def broken_archive(path):
    """An archive in which one byte of the first image is changed."""
    data = bytearray(write_zip(path, {"a/x.png": encoded(picture())}).read_bytes())
    data[60] ^= 255
    path.write_bytes(bytes(data))
    return path


@pytest.mark.parametrize("name", ["/etc/x.png", "../x.png", "a/../../x.png", "..\\x.png", "C:\\x.png", "a/.."])
def test_names_that_lead_out_of_an_archive(tmp_path, name):
    path = tmp_path / "my.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("cat/a.png", encoded(picture()))
        archive.writestr(zipfile.ZipInfo(name), b"")
    with pytest.raises(DataError, match=r"my\.zip has a file named .*, which leads out of the archive"):
        read_images(path)


def test_broken_archives(tmp_path, monkeypatch):
    path = tmp_path / "my.zip"
    with pytest.raises(DataError, match=r"my\.zip/a/x\.png cannot be read: Bad CRC-32"):
        arrays(read_images(broken_archive(path)))
    write_zip(path, {"a/x.png": encoded(picture())})
    whole = path.read_bytes()
    directory = whole.index(b"PK\1\2")
    path.write_bytes(whole[: directory + 8] + b"\1" + whole[directory + 9 :])
    with pytest.raises(DataError, match=r"my\.zip/a/x\.png is encrypted"):
        read_images(path)
    path.write_bytes(whole[:directory] + b"PK\1\3" + whole[directory + 4 :])
    with pytest.raises(DataError, match=r"my\.zip is a broken zip archive"):
        read_images(path)
    path.write_bytes(whole[:directory])
    with pytest.raises(DataError, match=r"my\.zip is a broken zip archive: its end, which lists the files, is missing"):
        read_images(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a/x.png", b"1")
        with pytest.warns(UserWarning, match="Duplicate name"):
            archive.writestr("a/x.png", b"2")
    with pytest.raises(DataError, match=r"my\.zip has two files of one name"):
        read_images(path)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_LZMA) as archive:
        archive.writestr("a/x.png", encoded(picture()))
    packed = bytearray(path.read_bytes())
    packed[60:70] = bytes(10)
    path.write_bytes(bytes(packed))
    with pytest.raises(DataError, match=r"my\.zip/a/x\.png cannot be read: "):
        arrays(read_images(path))
    path.write_bytes(whole)
    monkeypatch.setattr("jaxformer.data.images.LARGEST_FILE", 50)
    (tmp_path / "large.png").write_bytes(bytes(51))
    with pytest.raises(DataError, match=r"large\.png has more than 50 bytes"):
        read_file(tmp_path / "large.png")
    with pytest.raises(DataError, match=r"my\.zip/a/x\.png has more than 50 bytes"):
        read_images(path)


def test_places_without_images(tmp_path):
    (tmp_path / "notes.txt").write_text("no image")
    with pytest.raises(DataError, match=r"holds no image; their names end in \.bmp, "):
        read_images(tmp_path)
    with pytest.raises(DataError, match=r"notes\.txt must be a folder, a zip archive or an IDX file"):
        read_images(tmp_path / "notes.txt")
    for missing in ("nowhere", "notes.txt/cat"):
        with pytest.raises(
            DataError, match=f"cannot read .*{missing}: there is no such folder, zip archive or IDX file"
        ):
            read_images(tmp_path / missing)
    write_zip(tmp_path / "my.zip", {"a/x.png": b""})
    with pytest.raises(DataError, match=r"my\.zip/b holds no image"):
        read_images(tmp_path / "my.zip" / "b")
    os.mkfifo(tmp_path / "pipe.png")
    for name, message in (("pipe.png", "not a regular file"), ("gone.png", "No such file")):
        with pytest.raises(DataError, match=rf"{name}.*{message}"):  # and nothing waits for the other end of a pipe
            read_file(tmp_path / name)


@pytest.fixture
def digits(tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (4, 3, 5), np.uint8)
    write_idx(tmp_path / "images", images)
    write_idx(tmp_path / "labels", np.array([3, 0, 10, 0], np.uint8))
    return tmp_path, images


def test_idx_files_of_images_and_labels(digits):
    folder, images = digits
    store = read_images(folder / "images")
    assert all(map(np.array_equal, arrays(store), images))
    labeled = label_images(store, folder / "labels")
    assert labeled.labels == ("3", "0", "10", "0")
    assert labeled.classes == ("0", "3", "10")  # by value
    names = [f"digit {i}" for i in range(11)]
    assert label_images(store, folder / "labels", classes=names, names=names).labels[2] == "digit 10"
    with pytest.raises(DataError, match=r"labels, label 3: 10 must be below 10, the number of classes"):
        label_images(store, folder / "labels", names=names[:10])
    assert label_images(store, folder / "labels", classes=("10", "3", "0")).labels == ("3", "0", "10", "0")
    with pytest.raises(DataError, match=r"labels, label 3: the label '10' is not one of the classes 0, 3"):
        label_images(store, folder / "labels", classes=("0", "3"))
    write_idx(folder / "labels", np.zeros(3, np.uint8))
    with pytest.raises(DataError, match=r"labels must hold 4 labels, one for each image, got \[3\]"):
        label_images(store, folder / "labels")
    with pytest.raises(DataError, match=r"labels must hold images \[N, h, w\]"):
        read_images(folder / "labels")


def test_a_table_of_labels(tmp_path):
    store = read_images(write_folder(tmp_path / "images", NAMES))
    table = tmp_path / "labels.tsv"
    table.write_text("dog/c.png\tbird, small\n\ncat/a.png\tcat\n")
    labeled = label_images(store, table)
    assert (labeled.indices, labeled.labels) == ((2, 0), ("bird, small", "cat"))
    assert labeled.place(0) == f"{tmp_path}/images/dog/c.png"
    table.write_text("cat/a.png,cat\n")
    assert label_images(store, table, classes=["cat", "dog"]).labels == ("cat",)
    reader, writer = os.pipe()
    os.write(writer, b"cat/a.png\tcat\n")
    os.close(writer)
    assert label_images(store, f"/dev/fd/{reader}").labels == ("cat",)  # a pipe, which can be read only once
    os.close(reader)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("cat/z.png\tcat", r"labels\.tsv, line 2: .*images has no image 'cat/z\.png'"),
        ("../x.png\tcat", r"labels\.tsv, line 2: .* has no image"),
        ("cat/b.png\tbird", r"labels\.tsv, line 2: the label 'bird' is not one of the classes cat, dog"),
        ("cat/b.png\t ", r"labels\.tsv, line 2: the label is empty"),
        ("cat/b.png", r"labels\.tsv, line 2: there must be the name of an image, a tab or a comma, and a label"),
        ("cat/a.png\tdog", r"labels\.tsv, line 2: 'cat/a\.png' has a label already"),
        ("cat/b.png\tc\0t", r"labels\.tsv, line 2': the label must be UTF-8 without control characters, got 'c"),
    ],
)
def test_mistakes_in_a_table(tmp_path, line, message):
    store = read_images(write_folder(tmp_path / "images", NAMES))
    (tmp_path / "labels.tsv").write_text(f"cat/a.png\tcat\n{line}\n")
    with pytest.raises(DataError, match=message):
        label_images(store, tmp_path / "labels.tsv", classes=["cat", "dog"])


def test_labels_that_are_folders(tmp_path):
    store = read_images(write_folder(tmp_path, ("cat/a.png", "b.png")))
    with pytest.raises(DataError, match=r"/b\.png must lie in a folder named after its class"):
        label_images(store)
    write_folder(tmp_path / "more", ("bird/a.png", "cat/a.png"))
    with pytest.raises(DataError, match=r"/cat/a\.png: the label 'cat' is not one of the classes dog, bird"):
        label_images(read_images(tmp_path / "more"), classes=["dog", "bird"])
    for label in (b"\xff", b"a\nb"):
        odd = write_folder(tmp_path / label.hex(), [f"{os.fsdecode(label)}/a.png"])
        with pytest.raises(DataError, match=r"^'.*a\.png': the label must be UTF-8 without control characters, got "):
            label_images(read_images(odd))
    decomposed = write_folder(tmp_path / "mac", ["cafe\u0301/a.png"])
    assert label_images(read_images(decomposed), classes=["b", "caf\u00e9"]).labels == ("caf\u00e9",)
    (tmp_path / "labels.tsv").write_text("\n")
    with pytest.raises(DataError, match=r"labels\.tsv holds no label"):
        label_images(store, tmp_path / "labels.tsv")
    with pytest.raises(DataError, match=r"cannot read .*gone"):
        label_images(store, tmp_path / "gone")


def test_parts(tmp_path):
    """Equal images stay together; a part does not depend on the order, and larger parts contain smaller ones."""
    folder = write_folder(tmp_path, [f"x/{number}.png" for number in range(40)])
    for number in range(20):
        (folder / "x" / f"copy {number}.png").write_bytes((folder / "x" / f"{number}.png").read_bytes())
    images = label_images(read_images(folder))
    contents = lambda part: {part.store.checksums[i] for i in part.indices}
    rest, held_out = images.split(0.25)
    assert len(rest) + len(held_out) == 60
    assert 15 <= len(held_out) <= 16
    assert contents(images.split(15)[1]) == contents(held_out)
    assert not contents(rest) & contents(held_out)
    turned = LabeledImages(images.store, images.indices[::-1], images.labels)
    assert contents(turned.split(0.25)[1]) == contents(held_out)
    assert contents(images.first(5)) < contents(images.first(15))
    assert contents(turned.first(5)) == contents(images.first(5)) != contents(images.take(range(5)))
    assert len(images.first(100)) == 60
    renamed = LabeledImages(images.store, images.indices, ("y", *images.labels[1:]))
    assert len({one.fingerprint for one in (images, turned, renamed)}) == 3
    with pytest.raises(DataError, match="cannot set aside"):
        images.take([0]).split(0.5)


def test_an_image_that_changed_after_it_was_read_is_refused(tmp_path):
    """Its pixels would be cached under the other checksum."""
    (tmp_path / "a.png").write_bytes(encoded(picture(0)))
    store = read_images(tmp_path)
    (tmp_path / "a.png").write_bytes(encoded(picture(1)))
    with store.reading() as read, pytest.raises(DataError, match=r"a\.png has changed since it was first read"):
        read(0)


def test_suffixes_are_those_of_the_formats():
    known = Image.registered_extensions()
    assert {known[suffix] for suffix in SUFFIXES} == {"BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP"}
