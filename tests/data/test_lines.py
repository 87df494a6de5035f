"""Bad files give a message that names the file and the line; compressed ones are read as what they hold."""

import gzip
import lzma
import os
import random
import tarfile
import threading
import zipfile

import pytest

from jaxformer.data import lines
from jaxformer.errors import ConfigError, DataError


def write(path, data):
    path.write_bytes(data)
    return path


def test_invalid_utf8_names_file_and_line(tmp_path):
    with pytest.raises(DataError, match=r"bad, line 2: not UTF-8 \(byte 0xff\)"):
        lines.read_lines(write(tmp_path / "bad", b"a\nb\xff\n"))
    with pytest.raises(DataError, match=r"mark, line 2: not UTF-8 \(byte 0xff\)"):
        lines.read_lines(write(tmp_path / "mark", b"\xef\xbb\xbfa\n\xff\n"))


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le"])
def test_utf16_is_named(tmp_path, encoding):
    """English in UTF-16 without a byte order mark is valid UTF-8, with a NUL after each letter."""
    path = write(tmp_path / "bad", "A dog runs.\nShe sings.\n".encode(encoding))
    with pytest.raises(DataError, match=f"bad looks like {encoding[:6].upper()}; convert it, for example with: iconv"):
        lines.read_lines(path)


def test_a_packed_text_is_named(tmp_path):
    """Even a tar file, which is valid UTF-8 with few NULs, so its header would be the first line of the text."""
    text = write(tmp_path / "text", b"To be\n" * 9999)
    with zipfile.ZipFile(tmp_path / "text.zip", "w") as archive:
        archive.write(text, "text")
    with tarfile.open(tmp_path / "text.tar", "w") as archive:
        archive.add(text, "text")
    (tmp_path / "text.tar.gz").write_bytes(gzip.compress((tmp_path / "text.tar").read_bytes()))
    for suffix, command in (("zip", "unzip"), ("tar", "tar -xf"), ("tar.gz", "tar -xf")):
        message = rf"text\.{suffix} looks compressed or packed; unpack it, for example with: {command}"
        with pytest.raises(DataError, match=message):
            lines.read_utf8(tmp_path / f"text.{suffix}")


@pytest.mark.timeout(60)
def test_a_device_that_never_ends_is_refused(tmp_path, monkeypatch):
    """A pipe, such as that of ``<(zcat file)`` in a shell, is read to its end."""
    monkeypatch.setattr(lines, "LARGEST_STREAM", 1 << 16)
    with pytest.raises(DataError, match=r"/dev/zero is not a regular file and does not end after 65,536 bytes"):
        lines.read_lines("/dev/zero")
    os.mkfifo(tmp_path / "pipe")
    writer = threading.Thread(target=(tmp_path / "pipe").write_bytes, args=(b"a\n" * (1 << 15),))
    writer.start()
    assert len(lines.read_lines(tmp_path / "pipe")) == 1 << 15
    writer.join()


TEXT = "".join(f"{number} été\r\n" for number in range(30_000)) + "no end"
PACKERS = {"gz": gzip.compress, "xz": lzma.compress}


def zstd_module():
    return lines._zstd("x")


def has_zstd():
    try:
        return bool(zstd_module())
    except ConfigError:
        return False


@pytest.mark.parametrize("kind", ["gz", "xz", "zst"])
def test_compressed_files_are_read_and_cut_ones_refused(tmp_path, kind):
    """Whatever their names; also two joined archives, as ``cat a.gz b.gz`` makes."""
    if kind == "zst" and not has_zstd():
        pytest.skip("no package reads zstd")
    packed = (zstd_module().compress if kind == "zst" else PACKERS[kind])(TEXT.encode())
    path = write(tmp_path / "text", packed + packed)
    assert lines.read_lines(path) == [*(TEXT * 2).replace("\r\n", "\n").split("\n")]
    for cut in (len(packed) - 3, len(packed) // 2):
        write(path, packed[:cut])
        with pytest.raises(DataError, match=r"text is damaged or cut off \(.*\); copy it again"):
            lines.read_lines(path)


def test_a_package_for_zstd_is_named(tmp_path, monkeypatch):
    path = write(tmp_path / "text", b"\x28\xb5\x2f\xfd....")
    monkeypatch.setattr(lines, "ZSTD", ("no_such_module",))
    with pytest.raises(ConfigError, match=r"text is compressed by zstd: pip install 'jaxformer\[zstd\]', or unpack it"):
        lines.read_lines(path)


@pytest.mark.parametrize("block", [1, 7, 64])
def test_blocks_of_any_size_give_the_same_lines(tmp_path, monkeypatch, block):
    """As of a file that is read whole: also line ends, characters and byte order marks that a block divides."""
    draw = random.Random(block)
    monkeypatch.setattr(lines, "BLOCK", block)
    for _ in range(30):
        text = "".join(draw.choices(["a", "é", "日", "\r\n", "\n", "\r", "\t", "\u2028", " "], k=40)) + "\nz"
        path = write(tmp_path / "text", draw.choice([b"", b"\xef\xbb\xbf" * (block > 6)]) + text.encode())
        expected = text.replace("\r\n", "\n")
        assert lines.read_utf8(path) == expected
        assert lines.read_lines(path) == expected.split("\n")
        assert next(lines.line_blocks(path))[0] == 1
    path = write(tmp_path / "text", b"a\n" * 50 + b"b\xff\n")
    with pytest.raises(DataError, match=r"text, line 51: not UTF-8 \(byte 0xff\)"):
        lines.read_lines(path)


def test_an_endless_line_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(lines, "BLOCK", 16)
    monkeypatch.setattr(lines, "LONGEST_LINE", 64)
    with pytest.raises(DataError, match=r"text, line 2 has more than 64 bytes; is it a text\?"):
        lines.read_lines(write(tmp_path / "text", b"a\n" + b"b" * 100))
    with pytest.raises(DataError, match="ends its lines with carriage returns alone"):
        lines.read_lines(write(tmp_path / "text", b"a\r" * 100))


@pytest.mark.parametrize("block", [8, 1 << 20])
def test_columns_that_differ_are_named_in_any_block(tmp_path, monkeypatch, block):
    """The first line with a text too many, and the first of the shortest, for any ends of blocks."""
    monkeypatch.setattr(lines, "BLOCK", block)
    path = write(tmp_path / "t", b"a\tb\t\n" * 9 + b"a\tb\tc\n" * 9 + b"\na\tb\n" * 9)
    with pytest.raises(DataError, match=r"t, line 10: 3 columns, but line 20 has 2; a text must not contain"):
        list(lines.read_columns(path, (0, 1), "{} {}"))
    path = write(tmp_path / "t", b"a\tb\t\n" * 9 + b"\na\tb\n")
    assert [number for number, *_ in lines.read_columns(path, (0, 1), "{} {}")] == [*range(1, 10), 11]
