"""Runs made of pretrained models: language models like GPT-2 and Llama, masked ones like BERT, and T5 as a translator.

Such a run has parameters and no checkpoints. It generates, scores and fills like one that was trained here, and other
runs start from it with `init_from`.
"""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp

from jaxformer import interop, models, sharding, training
from jaxformer.data.pretrained_tokenizer import PretrainedTokenizer
from jaxformer.data.special_tokens import SpecialTokens
from jaxformer.errors import ConfigError, DataError
from jaxformer.files import local_path
from jaxformer.interop.tensors import read_json
from jaxformer.modules.pure import Params, check_shapes
from jaxformer.sharding import Placement
from jaxformer.tasks import language_model, masked_language_model, registry, run_lock, rundir, translation
from jaxformer.tasks.base import TaskConfig
from jaxformer.tasks.language_model.config import LanguageModelingConfig
from jaxformer.tasks.masked_language_model.config import MaskedLanguageModelingConfig
from jaxformer.tasks.tokenizers import VOCAB_MULTIPLE, table_size
from jaxformer.tasks.training_setup import make_training_setup
from jaxformer.tasks.translation.config import TranslationConfig
from jaxformer.training.config import TrainConfig
from jaxformer.training.optimizers import OptimizerConfig

NEVER = -1e4
"""The bias of the logits of rows that fill up a table, whose tokens never occur."""

LENGTH = 1024
"""The most tokens of a window, unless more are asked for."""

_KINDS = "pad_token unk_token cls_token sep_token mask_token".split()
_BERT: dict[str, str] = dict(zip(_KINDS, "[PAD] [UNK] [CLS] [SEP] [MASK]".split(), strict=True))
_ROBERTA: dict[str, str] = dict(zip(_KINDS, "<pad> <unk> <s> </s> <mask>".split(), strict=True))
_NAMES: dict[str, dict[str, str]] = {
    "bert": _BERT,
    **dict.fromkeys(("roberta", "camembert", "xlm-roberta"), _ROBERTA),
}
"""The special tokens of families whose published files do not name them; they are defaults in transformers."""

FINE_TUNING: dict[str, Any] = {
    "optimizer": OptimizerConfig(learning_rate=5e-5, schedule="linear", warmup_steps=100, clip_norm=1.0),
    "train": TrainConfig(steps=2000, validate_every=200, checkpoint_every=200),
}
"""The settings with which training starts from such a run, unless others are given."""


def convert(folder: str | os.PathLike[str], out: str | os.PathLike[str], *, length: int = 0) -> TaskConfig:
    """Makes a run of a folder of Hugging Face with ``config.json``, safetensors and ``tokenizer.json``.

    Tables get the rows of the tokenizer's vocabulary, filled up as in training; rows beyond are left out. The mask
    token of a masked language model gets the id that it has here, the first after the vocabulary.

    Returns the configuration of the run.

    Args:
      length: the most tokens that a language model reads; 0 for those of its table of positions, or `LENGTH` if it has
        none or a longer one.

    Raises:
      ConfigError: `out` exists and is not empty; the length is more than the model has positions; or a package of the
        extra `pretrained` is not installed.
      DataError: the folder cannot be read (see `interop.load_pretrained`), has no ``tokenizer.json``, or holds a
        model of another kind.
    """
    folder, out = local_path(folder), local_path(out)
    if not os.path.isdir(folder):
        raise DataError(f"{folder} is no folder, and nothing is fetched: download the model's files first")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"{out} is not empty; name a new folder")
    tokenizer, names = read_tokenizer(folder)
    found = interop.load_pretrained(folder)
    if found.net.model is models.LanguageModel:
        config, params = _language_model(folder.resolve().name, found, tokenizer, length)
    elif found.family in ("t5", "mt5"):
        config, params = _text_to_text(folder.resolve().name, found, tokenizer)
    elif found.net.model is models.MaskedLanguageModel:
        mask = tokenizer.id_of(names.get("mask_token", ""))
        if mask is None:
            raise DataError(f"the tokenizer of {folder} has no mask token")
        config, params = _masked_language_model(folder.resolve().name, found, tokenizer, mask)
    else:
        raise DataError(
            f"{folder} holds a {found.family} ({found.net.model.__name__}), which cannot be converted; "
            "jaxformer.interop.load_pretrained reads it in Python"
        )
    with run_lock.held(out):
        _write(out, config, params, tokenizer, folder)
    return config


def read_tokenizer(folder: pathlib.Path) -> tuple[PretrainedTokenizer, Mapping[str, str]]:
    """Returns the tokenizer of a folder, and the names of its special tokens, such as ``{"mask_token": "[MASK]"}``.

    Raises:
      ConfigError: the package tokenizers is not installed.
      DataError: there is no ``tokenizer.json``, it is damaged, or special tokens cannot be found.
    """
    path = folder / "tokenizer.json"
    if not path.exists():
        raise DataError(
            f"{folder} has no tokenizer.json; transformers writes one: "
            "AutoTokenizer.from_pretrained(folder).save_pretrained(folder)"
        )
    content, settings = json.dumps(read_json(path), ensure_ascii=False), read_json(folder / "config.json")
    names = dict(_NAMES.get(str(settings.get("model_type")), {}))
    for file in ("special_tokens_map.json", "tokenizer_config.json"):
        for name, value in (read_json(folder / file) if (folder / file).exists() else {}).items():
            token = value.get("content") if isinstance(value, dict) else value
            if name.endswith("_token") and isinstance(token, str):
                names[name] = token
    try:
        bare = PretrainedTokenizer(content, SpecialTokens(0, 0, 0, 0))
    except ConfigError:
        raise
    except ValueError as error:
        raise DataError(f"{path} is damaged: {error}") from None
    special = _special(bare, names, settings)
    if special is None:
        raise DataError(f"neither the tokenizer nor config.json of {folder} names the end of a text (eos_token)")
    return bare.with_special(special), names


def _special(
    tokenizer: PretrainedTokenizer, names: Mapping[str, str], settings: Mapping[str, Any]
) -> SpecialTokens | None:
    """Returns the ids of special tokens; those that a vocabulary lacks share the id of its end. None without an end."""

    def find(*kinds: str) -> int | None:
        for kind in kinds:
            if kind in names and (token := tokenizer.id_of(names[kind])) is not None:
                return token
        token = settings.get(f"{kinds[-1]}_id")  # which has no ids of the class and separator tokens
        token = token[0] if isinstance(token, list) and token else token
        return token if type(token) is int and 0 <= token < tokenizer.vocab_size else None

    eos = find("sep_token", "eos_token")
    if eos is None:
        return None
    ids = {"pad": find("pad_token"), "bos": find("cls_token", "bos_token"), "eos": eos, "unk": find("unk_token")}
    if not tokenizer.is_special(ids["pad"] if ids["pad"] is not None else eos):  # a token of text
        ids["pad"] = None
    start = settings.get("decoder_start_token_id")
    if type(start) is int and 0 <= start < tokenizer.vocab_size:
        ids["bos"] = start
    return SpecialTokens(**{name: eos if token is None else token for name, token in ids.items()})


def _language_model(
    name: str, found: interop.Pretrained, tokenizer: PretrainedTokenizer, length: int
) -> tuple[LanguageModelingConfig, Params]:
    vocab_size, model = tokenizer.vocab_size, found.net.config
    size = vocab_size + -vocab_size % VOCAB_MULTIPLE
    decoder = _decoder_with_rows(found.params["decoder"], vocab_size, size)
    if size > model.vocab_size:  # rows of zeros have logits of 0, which would be the largest of some models
        decoder["output_bias"] = jnp.where(jnp.arange(size) < model.vocab_size, 0.0, NEVER)
    most = model.max_positions if model.positions == "learned" else found.settings.get("max_position_embeddings")
    if type(most) is int and length > most:
        raise ConfigError(f"length must be at most {most}, the positions of the model, got {length}")
    length = length or min(most if type(most) is int else LENGTH, LENGTH)
    data = language_model.DataConfig(tokenizer="pretrained", vocab_size=vocab_size, length=length, batch_size=8)
    model = dataclasses.replace(model, vocab_size=0, output_bias="output_bias" in decoder)
    decode = language_model.DecodeConfig(stop_at_end=True)
    config = LanguageModelingConfig(name=name, model=model, data=data, decode=decode, **FINE_TUNING)
    return config, {"decoder": decoder}


def _text_to_text(
    name: str, found: interop.Pretrained, tokenizer: PretrainedTokenizer
) -> tuple[TranslationConfig, Params]:
    """Returns T5 as a translator, whose decoder begins with the token of padding."""
    vocab_size = tokenizer.vocab_size
    decoder = _decoder_with_rows(found.params["decoder"], vocab_size, vocab_size)
    model = dataclasses.replace(found.net.config, source_vocab_size=0, target_vocab_size=0)
    data = translation.DataConfig(tokenizer="pretrained", vocab_size=vocab_size)
    return TranslationConfig(name=name, model=model, data=data, **FINE_TUNING), found.params | {"decoder": decoder}


def _masked_language_model(
    name: str, found: interop.Pretrained, tokenizer: PretrainedTokenizer, mask: int
) -> tuple[MaskedLanguageModelingConfig, Params]:
    vocab_size, model = tokenizer.vocab_size, found.net.config
    size, params = table_size(vocab_size), dict(found.params)
    encoder = dict(params["encoder"])
    vector = encoder["embeddings"]["tokens"]["table"][mask]
    encoder["embeddings"] = _with_rows(encoder["embeddings"], vocab_size, size)
    table = encoder["embeddings"]["tokens"]["table"].at[vocab_size].set(vector)
    encoder["embeddings"]["tokens"] = {"table": table}
    bias = _resized(params["output_bias"], vocab_size, size)
    bias = jnp.where(jnp.arange(size) < vocab_size, bias, NEVER)
    length = min(model.max_positions, masked_language_model.DataConfig.length)
    data = masked_language_model.DataConfig(tokenizer="pretrained", vocab_size=vocab_size, length=length)
    model = dataclasses.replace(model, vocab_size=0)
    config = MaskedLanguageModelingConfig(name=name, model=model, data=data, **FINE_TUNING)
    return config, params | {"encoder": encoder, "output_bias": bias}


def _decoder_with_rows(decoder: Params, vocab_size: int, size: int) -> Params:
    """Returns a decoder whose table and output projection have `size` tokens."""
    result = decoder | {"embeddings": _with_rows(decoder["embeddings"], vocab_size, size)}
    if "output" in decoder:
        result["output"] = {"kernel": _resized(decoder["output"]["kernel"].T, vocab_size, size).T}
    return result


def _with_rows(embeddings: Params, vocab_size: int, size: int) -> Params:
    return embeddings | {"tokens": {"table": _resized(embeddings["tokens"]["table"], vocab_size, size)}}


def _resized(table: Any, vocab_size: int, size: int) -> Any:
    """Returns the rows of a table that a vocabulary needs, filled up with zeros to `size`.

    Raises:
      DataError: the table has fewer rows than the vocabulary has tokens.
    """
    if len(table) < vocab_size:
        raise DataError(f"the tokenizer has {vocab_size} tokens, but the model has vectors for {len(table)}")
    missing = max(0, size - len(table))
    return jnp.pad(table[:size], [(0, missing)] + [(0, 0)] * (table.ndim - 1))


def _write(
    out: pathlib.Path, config: Any, params: Params, tokenizer: PretrainedTokenizer, folder: pathlib.Path
) -> None:
    setup = make_training_setup(registry.task_of(config), config, tokenizer.vocab_size, Placement(sharding.mesh("")))
    check_shapes(params, setup.network.net.shapes)
    timeout = training.save_timeout(params)
    with training.Checkpoints(out / rundir.PRETRAINED, keep_last=1, timeout=timeout) as checkpoints:
        checkpoints.save(0, params, {})
    tokenizer.save(out / "tokenizer.json")
    rundir.write_provenance(out, tokenizer=tokenizer.fingerprint, converted=str(folder.resolve()))
    rundir.write_config(out, config.task, config)  # the last file, which makes it a run
