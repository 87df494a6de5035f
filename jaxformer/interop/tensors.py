"""Tensors in safetensors files: names, shapes and arrays, read one at a time, and written whole or not at all.

This file is the only one that imports the package safetensors, of the extra `pretrained`. Pickled weights
(``pytorch_model.bin``) are refused, because reading them can run code.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import pathlib
import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from types import ModuleType, TracebackType
from typing import Any

import numpy as np

from jaxformer import lazy
from jaxformer.errors import DataError
from jaxformer.files import JsonObject

Settings = Mapping[str, Any]
"""The object of a ``config.json``."""

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"

FLOATS = {"F64", "F32", "F16", "BF16"}
"""The dtypes of weights that can be read."""

HALVES = {"F16": "float16", "BF16": "bfloat16"}
"""The names of those that hold fewer values than float32."""

_MAX_JSON = 64 * 2**20
_LFS = b"version https://git-lfs"
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*\.safetensors")


class Tensors:
    """The tensors of a model in a folder, in one file or in shards with an index; a context manager.

    Raises:
      ConfigError: the package safetensors is not installed.
      DataError: there are no such files, one is damaged, or the index does not agree with them.
    """

    def __init__(self, folder: pathlib.Path):
        self._open = _library().safe_open
        self._stack = contextlib.ExitStack()
        self._homes: dict[str, Any] = {}
        self.shapes: dict[str, tuple[int, ...]] = {}
        """The shape of each tensor, by name."""
        self.dtypes: dict[str, str] = {}
        """The dtype of each tensor, by name, as safetensors writes it, such as ``BF16``."""
        self.nonfinite: set[str] = set()
        """The names of the tensors that were read and have NaN or infinity, in float32."""
        self._folder = folder
        with contextlib.ExitStack() as stack:
            for name, expected in _files(folder).items():
                self._add(stack, folder / name, expected)
            self._stack = stack.pop_all()

    def _add(self, stack: contextlib.ExitStack, path: pathlib.Path, expected: set[str] | None) -> None:
        try:
            if not path.is_file():  # a named pipe would block
                raise OSError("it is not a regular file" if path.exists() else "it does not exist")
            opened = stack.enter_context(self._open(path, framework="numpy"))
            names = set(opened.keys())
        except Exception as error:  # the library's own class for a damaged file derives from Exception alone
            raise DataError(f"{path} cannot be read: {_reason(path, error)}") from None
        if expected is not None and names != expected:
            name = min(names ^ expected)
            raise DataError(f"{path} and {INDEX} do not agree on whether {name!r} is in it")
        for name in names:
            self._homes[name], about = opened, opened.get_slice(name)
            self.shapes[name], self.dtypes[name] = tuple(about.get_shape()), about.get_dtype()

    def read(self, name: str) -> np.ndarray:
        """Returns a tensor as float32."""
        if (dtype := self.dtypes[name]) not in FLOATS:
            raise DataError(
                f"{name!r} in {self._folder} has dtype {dtype}; weights must be {', '.join(sorted(FLOATS))}"
            )
        with np.errstate(over="ignore"):  # such numbers of float64 are reported as infinity
            tensor = self._homes[name].get_tensor(name).astype(np.float32)
        if not np.isfinite(tensor).all():
            self.nonfinite.add(name)
        return tensor

    def __enter__(self) -> Tensors:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()


def name_of(dtypes: Iterable[str]) -> str:
    """Returns the name of the dtype that all tensors have if it is float16 or bfloat16, else float32."""
    kinds = {*dtypes}
    return HALVES.get(min(kinds), "float32") if len(kinds) == 1 else "float32"


def write(folder: pathlib.Path, tensors: Iterable[tuple[str, np.ndarray]], *, shard_bytes: int) -> None:
    """Writes tensors to one file or, above `shard_bytes`, to several with an index, as Hugging Face does.

    Args:
      tensors: names and arrays; no more of them than fill two shards are held at once.
    """
    shards = _shards(tensors, shard_bytes)
    first, second = next(shards), next(shards, None)
    if second is None:
        _save(first, folder / SINGLE)
        return
    held: list[list[str]] = []
    total = 0
    for i, shard in enumerate(itertools.chain([first, second], shards), 1):
        _save(shard, folder / f"model-{i:05}.safetensors")
        held.append(list(shard))
        total += sum(x.nbytes for x in shard.values())
    homes: dict[str, str] = {}
    for i, names in enumerate(held, 1):  # their number is known now
        home = f"model-{i:05}-of-{len(held):05}.safetensors"
        (folder / f"model-{i:05}.safetensors").rename(folder / home)
        homes |= dict.fromkeys(names, home)
    index = {"metadata": {"total_size": total}, "weight_map": homes}
    (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


def _save(shard: Mapping[str, np.ndarray], path: pathlib.Path) -> None:
    path.touch()
    mode = stat.S_IMODE(path.stat().st_mode)
    try:
        _library().numpy.save_file(shard, path, metadata={"format": "pt"})
    except OSError:
        raise
    except Exception as error:  # the library's own class for a full disk derives from Exception alone
        raise OSError(f"cannot write {path.name}: {error}") from None
    path.chmod(mode)  # the library creates files that only this user can read


def _shards(tensors: Iterable[tuple[str, np.ndarray]], limit: int) -> Iterator[dict[str, np.ndarray]]:
    shard: dict[str, np.ndarray] = {}
    size = 0
    for name, x in tensors:
        x = np.ascontiguousarray(x)  # the library writes the buffer of another order as it is
        if shard and size + x.nbytes > limit:
            yield shard
            shard, size = {}, 0
        shard[name] = x
        size += x.nbytes
    yield shard


def check_folder(folder: pathlib.Path) -> None:
    """Checks that a path is a folder, and that it holds no adapter."""
    if not folder.is_dir():
        raise DataError(f"{folder} is not a folder, and nothing is fetched: download the model's files first")
    if (folder / "adapter_config.json").exists():
        raise DataError(
            f"{folder} holds an adapter (adapter_config.json), not a whole model; PEFT writes one: "
            "AutoPeftModel.from_pretrained(folder).merge_and_unload().save_pretrained(...)"
        )


def read_json(path: pathlib.Path) -> JsonObject:
    """Returns the object in a JSON file."""
    try:
        about = path.stat()
        if not stat.S_ISREG(about.st_mode):  # a named pipe would block, a device may have no end
            raise DataError(f"{path} is not a regular file")
        if about.st_size > _MAX_JSON:
            raise DataError(f"{path} is larger than {_MAX_JSON // 2**20} MiB")
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DataError(f"{path} does not exist") from None
    except DataError:
        raise
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{path} cannot be read: {_reason(path, error)}") from None
    if not isinstance(data, dict):
        raise DataError(f"{path} must hold a JSON object, got {type(data).__name__}")
    return data


def _reason(path: pathlib.Path, error: Exception) -> str:
    """Returns the reason for which a file cannot be read; it is often a clone without Git LFS."""
    start = b""
    with contextlib.suppress(OSError):
        if path.is_file():  # a named pipe would block
            with path.open("rb") as file:
                start = file.read(len(_LFS))
    if start == _LFS:
        return "it is a pointer of Git LFS; git lfs pull in its folder fetches the file"
    return str(error)


def _files(folder: pathlib.Path) -> Mapping[str, set[str] | None]:
    """Returns the names of the files and, with an index, the tensors that each must hold."""
    if (folder / SINGLE).is_file():
        return {SINGLE: None}
    if not (folder / INDEX).is_file():
        reason = ""
        if pickled := sorted(path.name for path in folder.glob("*.bin")):
            reason = f"; {pickled[0]} is a pickle, which can run code when it is read: load it where you trust it and "
            reason += "save it with save_pretrained, which writes safetensors"
        raise DataError(f"{folder} holds neither {SINGLE} nor {INDEX}{reason}")
    homes = read_json(folder / INDEX).get("weight_map")
    if not isinstance(homes, dict) or not homes:
        raise DataError(f"{folder / INDEX} has no weight_map")
    files: dict[str, set[str] | None] = {}
    for name, home in homes.items():
        if not isinstance(home, str) or not _PLAIN_NAME.fullmatch(home):
            raise DataError(f"{folder / INDEX} names {home!r}, which is not a file name in this folder")
        tensors = files.setdefault(home, set())
        assert tensors is not None
        tensors.add(name)
    return files


def _library() -> ModuleType:
    lazy.require("safetensors", what="pretrained weights need", extra="pretrained")
    import safetensors
    import safetensors.numpy

    return safetensors
