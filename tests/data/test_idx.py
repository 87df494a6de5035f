"""IDX files: reading inverts writing; a file that is damaged or has another format gives one error with its name."""

import gzip
import struct

import numpy as np
import pytest

from jaxformer.data.idx import is_idx, read_idx, write_idx
from jaxformer.errors import DataError

ARRAY = np.random.default_rng(0).integers(0, 256, (3, 4, 5), np.uint8)


@pytest.fixture
def file(tmp_path):
    write_idx(tmp_path / "my.idx", ARRAY)
    return tmp_path / "my.idx"


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_reading_inverts_writing(file, pack):
    """The header is that of MNIST: two zeros, 8 for unsigned bytes, the number of dimensions, and the sizes."""
    assert file.read_bytes() == struct.pack(">4B3I", 0, 0, 8, 3, 3, 4, 5) + ARRAY.tobytes()
    file.write_bytes(pack(file.read_bytes()))
    assert is_idx(file)
    np.testing.assert_array_equal(read_idx(file), ARRAY)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: data[:-1], r"broken: it holds less than its header says, shape \[3, 4, 5\]"),
        (lambda data: data + b"x", "broken: it holds more than its header says"),
        (lambda data: data[:10], "broken: it holds less"),
        (lambda data: data[:4] + bytes(4), r"broken: it holds less than its header says, shape \[0\]"),
        (lambda data: data[:3], "not an IDX file of unsigned bytes: it begins with 000008, not with 000008 and"),
        (lambda data: b"\0\0\x0d" + data[3:], "not an IDX file of unsigned bytes: it begins with 00000d03"),
        (lambda data: b"\0\0\x08\0", "not an IDX file of unsigned bytes"),
        (lambda data: data[:4] + b"\xff" * 12 + data[16:], "claims 79,228,.* bytes in shape"),
        (lambda data: b"\0\0\x08\xff" + b"\0\0\0\1" * 255 + b"x", "cannot be an array: .*dimension"),
        (lambda data: data[:4] + bytes(4) + b"\xff" * 8, "cannot be an array: .*too big"),
        (lambda data: gzip.compress(data)[:-20], "broken: "),
        (lambda data: gzip.compress(data)[:20] + b"noise" * 9, "broken: "),
        (lambda data: gzip.compress(data + bytes(10**6)), "broken: it holds more"),
    ],
)
def test_broken_files(file, change, message):
    file.write_bytes(change(file.read_bytes()))
    with pytest.raises(DataError, match=rf"my\.idx.*{message}"):
        read_idx(file)


def test_other_files(tmp_path):
    (tmp_path / "text").write_text("no")
    (tmp_path / "packed").write_bytes(gzip.compress(b"no")[:-9])
    assert not is_idx(tmp_path / "text")
    assert not is_idx(tmp_path / "packed")
    (tmp_path / "wide").write_bytes("wide".encode("utf-32-be"))  # begins with zeros too
    assert not is_idx(tmp_path / "wide")
    (tmp_path / "floats").write_bytes(b"\0\0\x0d\1\0\0\0\1" + bytes(4))
    assert is_idx(tmp_path / "floats")
    with pytest.raises(DataError, match="floats is not an IDX file of unsigned bytes: it begins with 00000d01"):
        read_idx(tmp_path / "floats")
    for function in (is_idx, read_idx):
        with pytest.raises(DataError, match=r"cannot read .*gone: No such file"):
            function(tmp_path / "gone")
    with pytest.raises(ValueError, match=r"array must be uint8 .*, got float64"):
        write_idx(tmp_path / "x", np.zeros(3))
