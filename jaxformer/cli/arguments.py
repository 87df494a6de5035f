"""Arguments that are settings: ``--model.d_model 256`` replaces one field of a configuration."""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import inspect
import io
import itertools
import re
import shlex
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import tyro

from jaxformer.errors import ConfigError, did_you_mean


def override(config: Any, arguments: Sequence[str]) -> Any:
    """The configuration with the settings that the arguments name, as ``--path.to.field value``.

    What is true or false may be given as ``--model.remat True``, ``--model.remat=true`` or ``--model.remat``.

    Raises:
      ConfigError: an unknown setting (the nearest is named), or a value of the wrong type.
    """
    known = paths(config)
    for argument in arguments:
        name = argument.partition("=")[0]
        if name.startswith("--"):
            plain = name[2:].replace("-", "_")
            plain = plain.removeprefix("no_") if plain not in known else plain
            head, _, tail = plain.rpartition(".")
            plain = f"{head}.{tail.removeprefix('no_')}" if head and plain not in known else plain
            if plain not in known:
                raise ConfigError(f"unknown setting {name}{did_you_mean(plain, known)}")
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
            return tyro.cli(
                type(config), default=config, args=_flags(arguments, known), config=(tyro.conf.AvoidSubcommands,)
            )
    except SystemExit as stopped:
        raise ConfigError(_essence(said.getvalue())) from stopped
    except ValueError as error:  # a configuration that refuses its values
        raise ConfigError(str(error)) from error


def settings_help(config: Any) -> str:
    """Every setting with its value, as an argument gives it, and its meaning, one a line."""
    lines = []
    for path, (value, text) in paths(config).items():
        words = value if isinstance(value, tuple) else (value,)
        lines.append(f"  --{path} {shlex.join(map(str, words))}" + (f"\n        {text}" if text else ""))
    return "\n".join(lines)


def paths(config: Any, prefix: str = "") -> dict[str, tuple[Any, str]]:
    """Every setting's dotted name, with its value and its docstring."""
    found: dict[str, tuple[Any, str]] = {}
    texts = field_docstrings(type(config))
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            found.update(paths(value, f"{prefix}{field.name}."))
        else:
            found[f"{prefix}{field.name}"] = (value, texts.get(field.name, ""))
    return found


def field_docstrings(kind: type) -> dict[str, str]:
    """The string that follows each field in a dataclass's source."""
    texts: dict[str, str] = {}
    for ancestor in reversed(kind.__mro__[:-1]):
        (definition,) = ast.parse(textwrap.dedent(inspect.getsource(ancestor))).body
        for field, text in itertools.pairwise(definition.body if isinstance(definition, ast.ClassDef) else []):
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(text, ast.Expr):
                docstring = text.value.value if isinstance(text.value, ast.Constant) else None
                if isinstance(docstring, str):
                    texts[field.target.id] = " ".join(docstring.split())
    return texts


def _flags(arguments: Sequence[str], known: Mapping[str, tuple[Any, str]]) -> list[str]:
    """The arguments with ``--x True`` and ``--x=False`` of settings that are true or false as tyro's flags."""
    given, words = [], list(arguments)
    while words:
        word = words.pop(0)
        name, equals, value = word.partition("=")
        path = name[2:].replace("-", "_")
        if name.startswith("--") and path in known and isinstance(known[path][0], bool):
            if not equals and words and words[0].lower() in ("true", "false"):
                value = words.pop(0)
            if value.lower() in ("true", "false"):
                head, dot, tail = path.rpartition(".")
                word = f"--{head}{dot}{'no_' if value.lower() == 'false' else ''}{tail}"
        given.append(word)
    return given


def _essence(text: str) -> str:
    """What tyro says went wrong, without its title, its frame and its help: what stands between the first two rules."""
    between = re.split(r"^.*[-─]{4,}.*$", text, flags=re.MULTILINE)
    lines = between[1] if len(between) > 1 else text
    return " ".join(word for word in re.split(r"[\s│]+", lines) if word)
