"""A user's own attention in place of the library's, from the file that `own_files` names or from Python.

A run keeps the text of the file only as a record: nothing in the directory of a run is ever run.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import inspect
import json
import os
import pathlib
import sys
from collections.abc import Callable, Mapping
from typing import NoReturn, TypeVar, cast

import jax

from jaxformer import models
from jaxformer.errors import ConfigError, did_you_mean
from jaxformer.files import write_text
from jaxformer.modules import AttentionFunction
from jaxformer.modules.attention_function import check_partial, name_of
from jaxformer.modules.pure import Params, Pure
from jaxformer.tasks import own_files
from jaxformer.tasks.base import AnyNetwork
from jaxformer.tasks.config import TaskConfig
from jaxformer.tasks.own_files import DIGITS, PYTHON, check_outside, parse

FILE = "attention.json"
"""The record in a run: the path, name and SHA-256 of the attention, and the text of its file."""

ConfigT = TypeVar("ConfigT", bound=TaskConfig)


@dataclasses.dataclass(frozen=True)
class Own:
    """An attention of a user's own."""

    text: str
    """The setting by which a run remembers it; ``python:NAME`` if it has no file."""
    attention: AttentionFunction
    """A function, an ``nnx.Module`` or `modules.per_layer`."""
    record: Mapping[str, object] = dataclasses.field(repr=False)


def settle(
    config: ConfigT,
    run: pathlib.Path,
    attention: AttentionFunction | str | None = None,
    *,
    saved: TaskConfig | None = None,
) -> tuple[ConfigT, Own | None]:
    """Returns a configuration with the full text of its attention, and that attention; None for the library's.

    Args:
      attention: an object, or a text, in place of the one in the configuration.
      saved: the configuration of the run in this directory, whose attention is taken if no other is given.

    Raises:
      ConfigError: it cannot be loaded, or lies in the directory of the run; or the run has the library's attention.
    """
    if isinstance(attention, str):
        parse(attention)
        config, attention = dataclasses.replace(config, attention=attention), None
    if saved is not None and not saved.attention and (attention is not None or config.attention):
        given = repr(config.attention) if attention is None else name_of(attention)
        raise ConfigError(f"{run} was trained with the library's attention, so it takes no other, got {given}")
    text = config.attention or (saved.attention if saved is not None else "")
    if attention is None and not text:
        return config, None
    own = load(text, run) if attention is None else _described(attention)
    return dataclasses.replace(config, attention=own.text), own


_loaded: dict[str, Own] = {}


def load(text: str, run: pathlib.Path | None = None) -> Own:
    """Runs the file of a setting, once for the same contents, and returns the attention of that name.

    Raises:
      ConfigError: there is no such file or name, the file has changed or fails, or what it holds is no attention; or it
        is in the directory of a run, this or another.
    """
    reference = parse(text)
    if reference.path is None:
        raise ConfigError(
            f"the attention {reference.name} was given in Python and has no file: give it again, as "
            f"jaxformer.load(RUN, attention={reference.name}) does, or with --attention FILE.py:NAME"
        )
    path = pathlib.Path(os.path.abspath(reference.path))
    check_outside(path, run or path)
    known = reference.digest
    if known and not path.exists():
        raise ConfigError(f"the run's attention is no longer in {path}; --attention FILE.py:NAME names another file")
    source = own_files.read(path, what="attention file")
    digest = hashlib.sha256(source).hexdigest()[:DIGITS]
    if known and known != digest:
        raise ConfigError(
            f"{path} has changed: its hash is {digest}, that of the run's attention is {known}; "
            f"--attention {path}:{reference.name} accepts the file as it is now"
        )
    text = f"{path}:{reference.name}@{digest}"
    if text not in _loaded:
        _loaded[text] = _of_file(path, reference.name, source, _run(path, source, reference.name, digest))
    return _loaded[text]


def _of_file(path: pathlib.Path, name: str, source: bytes, attention: AttentionFunction) -> Own:
    sha256 = hashlib.sha256(source).hexdigest()
    record = {"path": str(path), "name": name, "sha256": sha256, "text": source.decode(errors="replace")}
    return Own(f"{path}:{name}@{sha256[:DIGITS]}", attention, record)


def write_record(run: pathlib.Path, own: Own) -> None:
    """Writes the record of an attention into a run; nothing reads it but people."""
    write_text(run / FILE, json.dumps(own.record, indent=2) + "\n")


def _run(path: pathlib.Path, source: bytes, name: str, digest: str) -> AttentionFunction:
    module_name = f"jaxformer_attention_{digest}_{hashlib.sha256(os.fsencode(path)).hexdigest()[:DIGITS]}"
    module = sys.modules.get(module_name)
    if module is None:
        try:
            module = own_files.run(path, source, name=module_name)
        except (Exception, SystemExit) as error:
            raise ConfigError(f"attention: {own_files.explained(error, path)}") from error
    if not hasattr(module, name):
        public = [x for x, value in vars(module).items() if callable(value) and not x.startswith("_")]
        raise ConfigError(f"{path} has no attention {name!r}{did_you_mean(name, public) if public else ''}")
    _check_kind(getattr(module, name), f"{path}:{name}")
    return getattr(module, name)


def _check_kind(attention: object, where: str) -> None:
    """Checks that an object is a function or module, or `modules.per_layer`, which can be called too."""
    if not callable(attention):
        raise ConfigError(f"{where} must be a function or a module, got {attention!r}")
    try:
        check_partial(cast(AttentionFunction, attention))
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{where}: {error}") from error


def _described(attention: AttentionFunction) -> Own:
    """Returns an object with the file and name under which an imported module holds it, if there is one.

    Raises:
      ConfigError: it is no attention, or its file has changed since it was imported.
    """
    _check_kind(attention, "attention")
    module = sys.modules.get(getattr(attention, "__module__", None) or "")
    if module is not None and module.__name__ != "__main__" and "." not in module.__name__:  # runs as a file
        path = pathlib.Path(os.path.abspath(getattr(module, "__file__", None) or ""))
        names = [name for name, value in vars(module).items() if value is attention]
        if names and path.suffix == ".py" and path.exists():
            source = own_files.read(path, what="attention file")
            own_files.check_unchanged(module, path, source)
            return _of_file(path, names[0], source, attention)
    name, text = name_of(attention), None
    with contextlib.suppress(OSError, TypeError):
        text = inspect.getsource(attention if inspect.isroutine(attention) else type(attention))
    return Own(f"{PYTHON}{name}", attention, {"path": None, "name": name, "sha256": None, "text": text})


class _Reached(Exception):
    """A model calls its attention function."""


def probe(query: object, key: object, value: object, **options: object) -> NoReturn:
    """Stops the tracing of a model at its first call of attention."""
    raise _Reached


def _check_steps(net: Pure, params: Params) -> None:
    """Checks that a model which decodes can do so with this attention: a search would refuse it after training."""
    decoder = getattr(net.bind(params), "decoder", None)
    if isinstance(decoder, models.Decoder) and decoder.causal:
        decoder.stack.blocks(decoder.stack.unstacked())[0].check_steps()


def checked(
    make: Callable[[AttentionFunction], AnyNetwork],
    attention: AttentionFunction,
    trace: Callable[[AnyNetwork], object],
) -> AnyNetwork:
    """Returns the network with a user's attention, whose loss is traced, so that its errors are raised now.

    Args:
      make: makes the network with an attention function.
      trace: traces the loss of a network.

    Raises:
      ConfigError: the model calls no attention function; or this one raises an error, lacks an argument, or cannot
        be used in cached steps.
    """
    with contextlib.suppress(_Reached):
        trace(make(probe))
        raise ConfigError("attention: this model has no attention function, so it takes none; leave it out")
    try:
        network = make(attention)
        trace(network)
        jax.eval_shape(functools.partial(_check_steps, network.net), network.net.shapes)
    except Exception as error:
        kind = "" if isinstance(error, TypeError | ValueError) else f"{type(error).__name__}: "
        message = (str(error).splitlines() or [type(error).__name__])[0]
        raise ConfigError(f"attention {name_of(attention)}: {kind}{message}") from error
    return network
