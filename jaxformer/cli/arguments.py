"""Arguments that are settings: ``--model.d_model 256`` replaces one field of a configuration."""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import difflib
import functools
import inspect
import io
import itertools
import pathlib
import re
import shlex
import textwrap
import types
import typing
from collections.abc import Iterable, Sequence
from typing import Any

import tyro

from jaxformer.config import changed, kinds_of
from jaxformer.errors import ConfigError
from jaxformer.tasks import attention_setting
from jaxformer.tasks.registry import resolve, started


def check_order(command: str, arguments: Sequence[str], config: str, settings: Sequence[str]) -> None:
    """Checks that CONFIG comes before its settings; otherwise, the word after a setting would be ambiguous.

    A setting as one word, such as ``--train.steps=20``, may come first.

    Args:
      arguments: the command line.
      config: the word that was parsed as CONFIG.
      settings: the remaining words.

    Raises:
      ConfigError: a setting comes first.
    """
    before = list(arguments)[: list(arguments).index(config)]
    for word in settings:
        if word.startswith("--") and "=" not in word and word in before:
            raise ConfigError(f"CONFIG comes before its settings: jaxformer {command} CONFIG ... {word} ...")


ELSEWHERE: dict[str, tuple[str, ...]] = {
    "activation": ("activation_fn", "activation_function", "hidden_act"),
    "b1": ("adam_beta1",),
    "b2": ("adam_beta2",),
    "base": ("rope_base", "rope_theta"),
    "batch_size": ("max_sentences", "per_device_train_batch_size", "tokens_per_batch"),
    "beam_size": ("beam", "num_beams"),
    "checkpoint_every": ("save_every", "save_steps"),
    "compute_dtype": ("bf16", "dtype", "fp16", "torch_dtype"),
    "d_ff": ("d_inner", "ffn_dim", "ffn_embed_dim", "intermediate_size", "mlp_dim"),
    "d_model": ("embed_dim", "embedding_size", "emb_dim", "hidden_size", "n_embd"),
    "learning_rate": ("lr", "peak_lr"),
    "epsilon": ("adam_epsilon", "adam_eps", "eps"),
    "keep_last": ("keep_last_epochs", "save_total_limit"),
    "label_smoothing": ("label_smoothing_factor",),
    "length": ("block_size", "context_length", "max_length", "seq_len", "seq_length", "sequence_length"),
    "clip_norm": ("clip", "grad_clip", "gradient_clip", "max_grad_norm"),
    "log_every": ("log_interval", "logging_steps"),
    "log_to": ("report_to", "wandb_project"),
    "max_length": ("length", "max_len", "max_new_tokens", "max_seq_len", "max_sequence_length"),
    "max_tokens": ("max_length", "max_new_tokens"),
    "num_heads": ("attention_heads", "heads", "n_head", "n_heads", "nhead", "num_attention_heads"),
    "num_kv_heads": ("kv_heads", "n_kv_heads", "num_key_value_heads"),
    "num_layers": ("depth", "layers", "n_layer", "n_layers", "num_hidden_layers"),
    "num_microbatches": ("accumulate_grad_batches", "gradient_accumulation_steps", "update_freq"),
    "patience": ("early_stopping_patience",),
    "rank": ("lora_r", "lora_rank"),
    "schedule": ("lr_scheduler", "lr_scheduler_type"),
    "steps": ("epochs", "max_epoch", "max_epochs", "max_steps", "max_update", "num_epochs", "num_train_epochs"),
    "tokens_per_batch": ("batch_size", "max_tokens", "per_device_train_batch_size"),
    "validate_every": ("eval_every", "eval_interval", "eval_steps", "validate_interval"),
    "vocab_size": ("num_pieces", "vocab"),
    "warmup_steps": ("warmup", "warmup_ratio", "warmup_updates"),
}
"""The last parts of the names of settings, and their names in other toolkits."""


def override(config: Any, arguments: Sequence[str]) -> Any:
    """Returns the configuration with settings replaced by arguments, such as ``--model.d_model 256``.

    An argument such as ``--model.kind recurrent`` comes before all others, because the kind has its own settings.
    Booleans have the forms ``--model.remat True``, ``--model.remat=true`` and ``--model.remat``; None may be ``none``.

    Raises:
      ConfigError: an unknown setting (the message suggests the most similar one), or a value of the wrong type.
    """
    kinds, others = _split_kinds(arguments, config)
    config = changed(config, {part: {"kind": kind} for part, kind in kinds.items()}) if kinds else config
    settings = paths(config)
    for argument in others:
        name = argument.partition("=")[0]
        if name.startswith("--"):
            plain = name[2:].replace("-", "_")
            plain = plain.removeprefix("no_") if plain not in settings else plain
            head, _, tail = plain.rpartition(".")
            plain = f"{head}.{tail.removeprefix('no_')}" if head and plain not in settings else plain
            if plain not in settings:
                raise ConfigError(f"unknown setting {name}{_hint(plain, settings)}")
    output = io.StringIO()
    try:
        with contextlib.redirect_stderr(output), contextlib.redirect_stdout(output):
            return tyro.cli(
                type(config), default=config, args=_flags(others, config), config=(tyro.conf.AvoidSubcommands,)
            )
    except SystemExit as stopped:
        raise ConfigError(_message(output.getvalue())) from stopped
    except ValueError as error:  # a configuration refuses a value
        raise ConfigError(str(error)) from error


def _hint(name: str, settings: Iterable[str]) -> str:
    """Returns a hint with the settings that an unknown name may mean, such as the name used in another toolkit.

    >>> _hint("batch_size", ["data.tokens_per_batch", "data.separator"])
    "; did you mean 'data.tokens_per_batch'?"
    """
    part, _, last = name.rpartition(".")
    if last in ("output_dir", "save_dir"):
        return "; the folder of the run is --out"
    names = {setting: setting.rpartition(".")[2] for setting in settings}
    meant = [last, *(ours for ours, theirs in ELSEWHERE.items() if last in theirs)]
    if not set(meant) & set(names.values()):
        meant = difflib.get_close_matches(last, names.values(), n=1, cutoff=0.7)
    found = [setting for setting in names if names[setting] in meant]
    found = [setting for setting in found if setting.rpartition(".")[0] == part] or found
    if not found:
        return "; jaxformer train CONFIG --settings lists all"
    return f"; did you mean {' or '.join(map(repr, found))}?"


def resolved(reference: str, arguments: Sequence[str], out: pathlib.Path | None = None) -> Any:
    """Returns a named configuration with settings from the arguments and from the run that it starts from.

    Args:
      out: see `registry.started`.

    Raises:
      ConfigError: see `override`, `registry.resolve` and `registry.started`.
    """
    if "--attention=" in arguments or ("--attention", "") in itertools.pairwise(arguments):
        raise ConfigError(f"--attention is empty; leave it out for the library's: {attention_setting.ALWAYS}")
    config = override(resolve(reference), arguments)
    like = started(config, out)
    return config if like is config else override(like, arguments)


def settings_help(config: Any) -> str:
    """Returns the help text of all settings by section: argument, value, choices and docstring."""
    sections: dict[str, list[str]] = {}
    hints = _hints(config)
    for path, (value, text) in paths(config).items():
        part = path.rpartition(".")[0]
        lines = sections.setdefault(part, ["", f"{part}: {_docstring(config, part)}"] if part else [])
        words = value if isinstance(value, tuple) else (value,)
        lines.append(f"  --{path} {shlex.join(map(str, words))}")
        if typing.get_origin(hints[path]) is typing.Literal:
            choices = f"one of {', '.join(map(str, typing.get_args(hints[path])))}"
            lines += textwrap.wrap(choices, 110, initial_indent=" " * 8, subsequent_indent=" " * 8)
        lines += textwrap.wrap(text, 110, initial_indent=" " * 8, subsequent_indent=" " * 8)
    return "\n".join(line for lines in sections.values() for line in lines)


def _docstring(config: Any, path: str) -> str:
    """Returns the docstring of the part of a configuration at this dotted name."""
    *parents, name = path.split(".")
    return field_docstrings(type(functools.reduce(getattr, parents, config))).get(name, "")


def _hints(config: Any, prefix: str = "") -> dict[str, Any]:
    """Returns the type of every setting by its dotted name."""
    hints: dict[str, Any] = {}
    for name, hint in typing.get_type_hints(type(config)).items():
        part = getattr(config, name)
        hints |= _hints(part, f"{prefix}{name}.") if dataclasses.is_dataclass(part) else {f"{prefix}{name}": hint}
        if kinds := kinds_of(hint):
            hints[f"{prefix}{name}.kind"] = typing.Literal[tuple(kinds)]
    return hints


def paths(config: Any, prefix: str = "") -> dict[str, tuple[Any, str]]:
    """Returns the value and the docstring of every setting, by its dotted name."""
    settings: dict[str, tuple[Any, str]] = {}
    texts = field_docstrings(type(config))
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            settings.update(paths(value, f"{prefix}{field.name}."))
        else:
            settings[f"{prefix}{field.name}"] = (value, texts.get(field.name, ""))
    return settings


def field_docstrings(kind: type) -> dict[str, str]:
    """Returns the string that follows each field in a dataclass's source."""
    texts: dict[str, str] = {}
    for ancestor in reversed(kind.__mro__[:-1]):
        (definition,) = ast.parse(textwrap.dedent(inspect.getsource(ancestor))).body
        for field, text in itertools.pairwise(definition.body if isinstance(definition, ast.ClassDef) else []):
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(text, ast.Expr):
                docstring = text.value.value if isinstance(text.value, ast.Constant) else None
                if isinstance(docstring, str):
                    texts[field.target.id] = " ".join(docstring.split())
    return texts


def _split_kinds(arguments: Sequence[str], config: Any) -> tuple[dict[str, str], list[str]]:
    """Returns the kind of each part that the arguments choose (the last one, if repeated), and the other arguments."""
    hints = typing.get_type_hints(type(config))
    kinds, rest, words = dict[str, str](), list[str](), list(arguments)
    while words:
        word = words.pop(0)
        name, equals, value = word.partition("=")
        part = name[2:].removesuffix(".kind")
        if name == f"--{part}.kind" and kinds_of(hints.get(part)) and (equals or words):
            kinds[part] = value if equals else words.pop(0)
        else:
            rest.append(word)
    return kinds, rest


def _flags(arguments: Sequence[str], config: Any) -> list[str]:
    """Returns the arguments with Booleans as tyro's flags, and with the words True, False and None in any case.

    Raises:
      ConfigError: a Boolean has another value.
    """
    flags, words, hints = list[str](), list(arguments), _hints(config)
    while words:
        word = words.pop(0)
        name, equals, value = word.partition("=")
        hint = hints.get(name[2:].replace("-", "_")) if name.startswith("--") else None
        kinds = typing.get_args(hint) or (hint,)
        optional = types.NoneType in kinds
        if bool not in kinds:
            if optional and words and not equals and words[0].lower() == "none":
                words[0] = "None"
            flags.append(f"{name}=None" if optional and value.lower() == "none" else word)
            continue
        if not equals:
            value = words.pop(0) if words and not words[0].startswith("-") else "True"
        if value.lower() not in ("true", "false", *["none"] * optional):
            raise ConfigError(f"{name}: got {value!r}, expected True or False{' or None' if optional else ''}")
        head, dot, tail = name[2:].rpartition(".")
        flag = f"--{head}{dot}{'no_' if value.lower() == 'false' else ''}{tail}"
        flags.append(f"{name}={value.capitalize()}" if optional else flag)
    return flags


def _message(text: str) -> str:
    """Returns the error message in tyro's output: the text between its first two rules, without the frame."""
    sections = re.split(r"^.*[-─]{4,}.*$", text, flags=re.MULTILINE)
    lines = sections[1] if len(sections) > 1 else text
    return " ".join(word for word in re.split(r"[\s│]+", lines) if word).removeprefix("Error parsing ")
