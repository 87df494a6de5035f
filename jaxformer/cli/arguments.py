"""Arguments that are settings: ``--model.d_model 256`` replaces one field of a configuration."""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import difflib
import functools
import inspect
import itertools
import pathlib
import shlex
import textwrap
import types
import typing
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeVar, cast

from jaxformer.config import changed, choices_of, defaults_of, kind_of, members_of, types_of, value_type
from jaxformer.errors import ConfigError
from jaxformer.tasks import own_files
from jaxformer.tasks.registry import resolve, started

if TYPE_CHECKING:
    from jaxformer.tasks.config import TaskConfig

C = TypeVar("C")


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


def override(config: C, arguments: Sequence[str]) -> C:
    """Returns the configuration with settings replaced by arguments, such as ``--model.d_model 256``.

    The name of a choice, such as ``--model.positions rotary``, makes the settings of that choice known, in any order:
    ``--model.positions.base 5e5``. Booleans have the forms ``--model.remat True``, ``--model.remat=true`` and
    ``--model.remat``; None may be ``none``.

    Raises:
      ConfigError: an unknown setting (the message suggests the most similar one), or a value of the wrong type.
    """
    if not arguments:
        return config
    words = words_of(arguments)
    known = {path: setting.hint for path, setting in settings_of(type(config), config, words).items()}
    changes: dict[str, object] = {}
    for written, (argument, *values) in words.items():
        name, values = _setting(written, argument, values, known)
        *parts, last = name.split(".")
        place = functools.reduce(lambda part, key: cast(dict, part.setdefault(key, {})), parts, changes)
        value = _parsed(known[name], values, argument)
        if choices_of(known[name]):
            value = {"kind": value} | cast(dict, place.get(last, {}))
        place[last] = value
    return changed(config, changes)


def words_of(arguments: Sequence[str]) -> dict[str, list[str]]:
    """Returns each ``--name`` as it was written with the words after it, the last one if a name is repeated."""
    words: dict[str, list[str]] = {}
    current: list[str] | None = None
    for argument in arguments:
        if argument.startswith("--"):
            current = argument.split("=", 1)
            words[current[0][2:].replace("-", "_")] = current
        elif current is None:
            raise ConfigError(f"unexpected argument {argument!r}; settings begin with --")
        else:
            current.append(argument)
    return words


class Setting(NamedTuple):
    """A setting of a configuration."""

    hint: object
    """Its type."""
    value: object
    """Its value; the kind of a choice."""
    fields: tuple[tuple[type, str], ...]
    """The dataclass and the name of each field that leads to it, its own last."""


def settings_of(
    kind: type,
    config: object,
    words: Mapping[str, list[str]],
    prefix: str = "",
    above: tuple[tuple[type, str], ...] = (),
) -> dict[str, Setting]:
    """Returns every setting by its dotted name, with the choices of `words`, `config` or the defaults."""
    found: dict[str, Setting] = {}
    for name, hint in types_of(kind).items():
        path, choices, fields = f"{prefix}{name}", choices_of(hint), (*above, (kind, name))
        part = getattr(config, name) if type(config) is kind else defaults_of(kind)[name]
        if named := value_type(hint):
            written = (word.removeprefix(f"{path}.").partition(".")[0] for word in words if word.startswith(f"{path}."))
            for each in dict.fromkeys([*cast(Mapping, part), *written]) or ("NAME",):
                found |= settings_of(named, cast(Mapping, part).get(each), words, f"{path}.{each}.", fields)
            continue
        part_kind = hint
        if choices:
            part_kind = choices.get(words.get(path, ["", kind_of(part)])[-1], types.NoneType)
            found[path] = Setting(hint, kind_of(part), fields)
        elif not dataclasses.is_dataclass(hint):
            found[path] = Setting(hint, part, fields)
        if isinstance(part_kind, type):
            found |= settings_of(part_kind, part, words, f"{path}.", fields)
    return found


def _setting(name: str, argument: str, values: list[str], settings: Mapping[str, object]) -> tuple[str, list[str]]:
    """Returns the setting that an argument names, and its words; ``--no-x`` and ``--a.no-x`` are ``--x False``."""
    part, dot, last = name.rpartition(".")
    for plain in (name.removeprefix("no_"), f"{part}{dot}{last.removeprefix('no_')}"):
        if name not in settings and bool in members_of(settings.get(plain)) and not values:
            return plain, ["False"]
    if name not in settings:
        raise ConfigError(f"unknown setting {argument}{_hint(name, settings)}")
    return name, values


def _parsed(hint: object, words: list[str], argument: str) -> object:
    """Returns the value of a setting as plain data, whose type `changed` checks."""
    members = members_of(hint)
    for kinds in (typing.get_args(member) for member in members if typing.get_origin(member) is tuple and words):
        each = itertools.repeat(kinds[0]) if kinds[-1] is Ellipsis else itertools.chain(kinds, itertools.repeat(str))
        return [_parsed(kind, [word], argument) for kind, word in zip(each, words, strict=False)]
    if not words and bool in members:
        return True
    if len(words) != 1:
        problem = f"{argument} needs a value"
        if words:
            problem = f"unexpected argument {words[1]!r} after {argument} {words[0]}"
        raise ConfigError(problem)
    known: dict[str, object] = {}
    if bool in members:
        known = {"true": True, "false": False}
    if types.NoneType in members and not choices_of(hint):
        known["none"] = None
    for number in [number for number in (int, float) if number in members]:
        with contextlib.suppress(ValueError):
            return number(words[0])
    return known.get(words[0].lower(), words[0])


def _hint(name: str, settings: Mapping[str, object]) -> str:
    """Returns a hint with the settings that an unknown name may mean, such as the name used in another toolkit.

    >>> _hint("batch_size", {"data.tokens_per_batch": int, "data.separator": str})
    "; did you mean 'data.tokens_per_batch'?"
    """
    part, _, last = name.rpartition(".")
    if last in ("output_dir", "save_dir"):
        return "; the folder of the run is --out"
    others: dict[str, str] = {}
    for choice, hint in settings.items():
        for kind, each in choices_of(hint).items():
            for setting in settings_of(each, None, {}, f"{choice}.").keys() - settings.keys():
                before = others.get(setting, f"{setting!r} with --{choice}")
                others[setting] = f"{before} or {kind}" if setting in others else f"{before} {kind}"
    if name in others:
        return f": there is {others[name]}"
    known = {setting: repr(setting) for setting in settings} | others
    names = {setting: setting.rpartition(".")[2] for setting in known}
    meant = [last, *(ours for ours, theirs in ELSEWHERE.items() if last in theirs)]
    if not set(meant) & set(names.values()):
        meant = difflib.get_close_matches(last, names.values(), n=1, cutoff=0.7)
    alike = [setting for setting in names if names[setting] in meant]
    alike = [setting for setting in alike if setting.rpartition(".")[0] == part] or alike
    alike = [setting for setting in alike if setting in settings] or alike
    if not alike:
        return "; jaxformer train CONFIG --settings lists all"
    return f"; did you mean {' or '.join(known[setting] for setting in alike)}?"


def resolved(reference: str, arguments: Sequence[str], out: pathlib.Path | None = None) -> TaskConfig:
    """Returns a named configuration with settings from the arguments and from the run that it starts from."""
    if "--attention=" in arguments or ("--attention", "") in itertools.pairwise(arguments):
        raise ConfigError(f"--attention is empty; leave it out for the library's: {own_files.ALWAYS}")
    config = override(resolve(reference), arguments)
    like = started(config, out)
    return config if like is config else override(like, arguments)


def settings_help(config: object) -> str:
    """Returns the help text of all settings by section: argument, value, choices and docstring."""
    sections: dict[str, list[str]] = {"": []}
    wrap = functools.partial(textwrap.wrap, width=110, initial_indent=" " * 8, subsequent_indent=" " * 8)
    for path, setting in settings_of(type(config), config, {}).items():
        part = path.rpartition(".")[0]
        about = [field_docstrings(kind).get(name, "") for kind, name in setting.fields]
        if part not in sections:
            sections[part] = ["", f"{part}: {about[-2]}"]
        lines = sections[part]
        words = setting.value if isinstance(setting.value, tuple) else (setting.value,)
        lines.append(f"  --{path} {shlex.join(map(str, words))}")
        names = [*choices_of(setting.hint)]
        if typing.get_origin(setting.hint) is typing.Literal:
            names = typing.get_args(setting.hint)
        if names:
            lines += wrap(f"one of {', '.join(map(str, names))}")
        lines += wrap(about[-1])
    return "\n".join(line for lines in sections.values() for line in lines)


@functools.cache
def field_docstrings(kind: type) -> dict[str, str]:
    """Returns the string that follows each field in a dataclass's source."""
    texts: dict[str, str] = {}
    for ancestor in reversed(kind.__mro__[:-1]):
        (definition,) = ast.parse(textwrap.dedent(inspect.getsource(ancestor))).body
        assert isinstance(definition, ast.ClassDef)
        for pair in itertools.pairwise(definition.body):
            match pair:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(docstring))):
                    texts[name] = " ".join(docstring.split())
    return texts
