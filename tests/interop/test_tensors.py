"""Files of tensors: reading inverts writing, with any number of shards; wrong files are refused."""

import json
import os
import pathlib
import struct

import chex
import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy

from jaxformer.errors import DataError
from jaxformer.interop import tensors

ARRAYS = {name: np.random.default_rng(i).standard_normal((4, 3)).astype(np.float32) for i, name in enumerate("abcde")}


def read(folder):
    with tensors.Tensors(folder) as found:
        return {name: found.read(name) for name in found.shapes}


@pytest.mark.parametrize(("shard_bytes", "number"), [(10**9, 1), (48, 5), (100, 3), (1, 5)])
def test_shards(tmp_path, shard_bytes, number):
    tensors.write(tmp_path, ARRAYS.items(), shard_bytes=shard_bytes)
    chex.assert_trees_all_equal(read(tmp_path), ARRAYS)
    assert len(list(tmp_path.glob("*.safetensors"))) == number
    if number > 1:
        index = json.loads((tmp_path / tensors.INDEX).read_text())
        assert index["metadata"] == {"total_size": 240}
        assert set(index["weight_map"]) == set(ARRAYS)
        home = index["weight_map"]["a"]
        (tmp_path / home).rename(tmp_path / "model-00001.safetensors")  # the name in earlier versions
        (tmp_path / tensors.INDEX).write_text(json.dumps(index).replace(home, "model-00001.safetensors"))
        chex.assert_trees_all_equal(read(tmp_path), ARRAYS)


def test_arrays_in_another_order_of_memory(tmp_path):
    given = {"fortran": np.asfortranarray(ARRAYS["a"]), "transposed": ARRAYS["b"].T}
    tensors.write(tmp_path, given.items(), shard_bytes=10**9)
    chex.assert_trees_all_equal(read(tmp_path), given)


@pytest.mark.parametrize("dtype", [np.float64, np.float16, ml_dtypes.bfloat16])
def test_other_floats_become_float32(tmp_path, dtype):
    x = ARRAYS["a"].astype(dtype)
    safetensors.numpy.save_file({"a": x}, tmp_path / tensors.SINGLE)
    found = read(tmp_path)["a"]
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, x.astype(np.float32))


@pytest.mark.parametrize(
    ("dtypes", "name"),
    [(["BF16", "BF16"], "bfloat16"), (["F16"], "float16"), (["BF16", "F32"], "float32"), (["F64"], "float32")],
)
def test_the_dtype_of_a_file(dtypes, name):
    assert tensors.name_of(dtypes) == name


def test_integers_are_listed_and_not_read(tmp_path):
    safetensors.numpy.save_file({"ids": np.arange(3)}, tmp_path / tensors.SINGLE)
    with tensors.Tensors(tmp_path) as found:
        assert found.shapes == {"ids": (3,)}
        with pytest.raises(DataError, match=r"'ids' .* has dtype I64; weights must be"):
            found.read("ids")


def damage_header(path: pathlib.Path) -> None:
    data = path.read_bytes()
    path.write_bytes(struct.pack("<Q", 2**40) + data[8:])


DAMAGES = {
    "empty": lambda path: path.write_bytes(b""),
    "cut off": lambda path: path.write_bytes(path.read_bytes()[:-5]),
    "longer": lambda path: path.write_bytes(path.read_bytes() + b"x"),
    "header": damage_header,
    "folder": lambda path: (path.unlink(), path.mkdir()),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_files_are_refused(tmp_path, damage):
    tensors.write(tmp_path, ARRAYS.items(), shard_bytes=10**9)
    DAMAGES[damage](tmp_path / tensors.SINGLE)
    with pytest.raises(DataError, match=r"model\.safetensors"):
        read(tmp_path)


def test_pointers_of_git_lfs_are_refused_with_a_remedy(tmp_path):
    """A clone without Git LFS holds them in place of large files."""
    for name in (tensors.SINGLE, "tokenizer.json"):
        (tmp_path / name).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n")
    with pytest.raises(DataError, match=r"model\.safetensors cannot be read: .* git lfs pull"):
        tensors.Tensors(tmp_path)
    with pytest.raises(DataError, match=r"tokenizer\.json cannot be read: .* git lfs pull"):
        tensors.read_json(tmp_path / "tokenizer.json")


def edited(folder, change):
    path = folder / tensors.INDEX
    index = json.loads(path.read_text())
    change(index)
    path.write_text(json.dumps(index))


FIRST = "model-00001-of-00005.safetensors"
INDEXES = {
    "another folder": lambda index: index["weight_map"].update(a=f"../{FIRST}"),
    "absolute": lambda index: index["weight_map"].update(a="/etc/passwd"),
    "no name": lambda index: index["weight_map"].update(a=3),
    "another file": lambda index: index["weight_map"].update(a="weights.bin"),
    "a tensor too many": lambda index: index["weight_map"].update(z=FIRST),
    "a tensor too few": lambda index: index["weight_map"].pop("a"),
    "a missing file": lambda index: index["weight_map"].update(a="model-9.safetensors"),
    "no map": lambda index: index.pop("weight_map"),
}


@pytest.mark.parametrize("change", INDEXES)
def test_an_index_must_agree_with_its_files(tmp_path, change):
    tensors.write(tmp_path, ARRAYS.items(), shard_bytes=48)
    for path in tmp_path.glob("*.safetensors"):  # one file keeps two tensors, so that one can be left out
        if "00001" in path.name:
            safetensors.numpy.save_file({"a": ARRAYS["a"], "b": ARRAYS["b"]}, path)
        if "00002" in path.name:
            path.unlink()
    edited(tmp_path, lambda index: index["weight_map"].update(b=FIRST))
    chex.assert_trees_all_equal(read(tmp_path), ARRAYS)
    edited(tmp_path, INDEXES[change])
    with pytest.raises(DataError):
        read(tmp_path)


def test_pickles_are_refused_with_a_remedy(tmp_path):
    with pytest.raises(DataError, match=r"holds neither model\.safetensors nor"):
        tensors.Tensors(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(DataError, match=r"pytorch_model\.bin is a pickle.*save it with save_pretrained, which"):
        tensors.Tensors(tmp_path)
    with pytest.raises(DataError, match="holds neither"):
        tensors.Tensors(tmp_path / "absent")


@pytest.mark.parametrize("text", ["", "[1]", "{", '{"a": 1', "[" * 100_000, "\udcff"])
def test_json(tmp_path, text):
    path = tmp_path / "config.json"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(DataError, match=r"config\.json"):
        tensors.read_json(path)


def test_a_file_that_is_not_regular_is_refused(tmp_path):
    """A named pipe would block, and a device has no end."""
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", pathlib.Path("/dev/zero")):
        with pytest.raises(DataError, match="is not a regular file"):
            tensors.read_json(path)
    tensors.write(tmp_path, ARRAYS.items(), shard_bytes=48)
    shard = min(tmp_path.glob("*.safetensors"))
    shard.unlink()
    with pytest.raises(DataError, match=r"model-00001-of-0000\d\.safetensors cannot be read: it does not exist"):
        tensors.Tensors(tmp_path)
    os.mkfifo(shard)
    with pytest.raises(DataError, match="not a regular file"):
        tensors.Tensors(tmp_path)


def test_a_missing_package_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"jaxformer\[pretrained\]"):
        tensors.Tensors(tmp_path)
