"""Runs made of pretrained models: language models like GPT-2, masked ones like BERT, translators like Marian and T5.

Such a run has parameters and no checkpoints. It generates, scores and fills like one that was trained here, and other
runs start from it with `init_from`.
"""

from __future__ import annotations

import dataclasses
import os
import pathlib
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp

from jaxformer import interop, models, sharding, training
from jaxformer.data.marian_tokenizer import MarianTokenizer
from jaxformer.data.pretrained_tokenizer import PretrainedTokenizer
from jaxformer.data.tokenizer import Tokenizer
from jaxformer.errors import ConfigError, DataError
from jaxformer.files import local_path
from jaxformer.interop.tensors import read_json
from jaxformer.modules.pure import Params, check_shapes
from jaxformer.sharding import Placement
from jaxformer.tasks import language_model, masked_language_model, registry, run_lock, rundir, translation
from jaxformer.tasks.base import TaskConfig
from jaxformer.tasks.language_model.config import LanguageModelingConfig
from jaxformer.tasks.masked_language_model.config import MaskedLanguageModelingConfig
from jaxformer.tasks.pretrained_tokenizers import read_tokenizer
from jaxformer.tasks.tokenizers import VOCAB_MULTIPLE, table_size
from jaxformer.tasks.training_setup import make_training_setup
from jaxformer.tasks.translation.config import TranslationConfig
from jaxformer.training.config import TrainConfig
from jaxformer.training.optimizers import OptimizerConfig

NEVER = -1e4
"""The bias of the logits of rows that fill up a table, whose tokens never occur."""

LENGTH = 1024
"""The most tokens of a window, unless more are asked for."""

_WITHOUT_TEXT = {
    "mbart": "an mbart, whose texts begin with codes of languages",
    "vit": "a vit",
}

_STOPPING = {True: "first", False: "now", "never": "limit"}
"""The rules of `decode.stopping` by the values of ``early_stopping``."""

FINE_TUNING: dict[str, Any] = {
    "optimizer": OptimizerConfig(learning_rate=5e-5, schedule="linear", warmup_steps=100, clip_norm=1.0),
    "train": TrainConfig(steps=2000, validate_every=200, checkpoint_every=200),
}
"""The settings with which training starts from such a run, unless others are given."""


def convert(folder: str | os.PathLike[str], out: str | os.PathLike[str], *, length: int = 0) -> TaskConfig:
    """Makes a run of a folder of Hugging Face with ``config.json``, safetensors and the files of the tokenizer.

    Tables get the rows of the tokenizer's vocabulary, filled up as in training; rows beyond are left out. The mask
    token of a masked language model gets the id that it has here, the first after the vocabulary.

    Returns the configuration of the run.

    Args:
      length: the most tokens that a language model reads; 0 for those of its table of positions, or `LENGTH` if it has
        none or a longer one.

    Raises:
      ConfigError: `out` exists and is not empty; the length is more than the model has positions; or a package of the
        extra `pretrained` is not installed.
      DataError: the folder cannot be read (see `interop.load_pretrained`), has no tokenizer, or holds a model of
        another kind.
    """
    folder, out = local_path(folder), local_path(out)
    if not os.path.isdir(folder):
        raise DataError(f"{folder} is no folder, and nothing is fetched: download the model's files first")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"{out} is not empty; name a new folder")
    settings = _settings(folder)
    tokenizer, names = read_tokenizer(folder, settings)
    found, name = interop.load_pretrained(folder), folder.resolve().name
    if found.net.model is models.LanguageModel:
        config, params = _language_model(name, found, tokenizer, length)
    elif found.net.model is models.EncoderDecoder:
        config, params = _text_to_text(name, found, tokenizer, settings)
    elif found.net.model is models.MaskedLanguageModel:
        mask = tokenizer.id_of(names.get("mask_token", ""))
        if mask is None:
            raise DataError(f"the tokenizer of {folder} has no mask token")
        config, params = _masked_language_model(name, found, tokenizer, mask)
    else:
        raise DataError(_refusal(folder, f"a {found.family} without the head of a masked language model"))
    with run_lock.held(out):
        _write(out, config, params, tokenizer, folder)
    return config


def _settings(folder: pathlib.Path) -> dict[str, Any]:
    """Returns the settings of a model and of its generation, from both files.

    Raises:
      DataError: the folder holds a run, or a model that no command can use.
    """
    settings = read_json(folder / "config.json")
    if "model_type" not in settings and "task" in settings:
        raise DataError(f"{folder} is a run already; its commands read it as it is")
    if settings.get("model_type") in _WITHOUT_TEXT:
        raise DataError(_refusal(folder, _WITHOUT_TEXT[settings["model_type"]]))
    generation = folder / "generation_config.json"
    return settings | (read_json(generation) if generation.exists() else {})


def _refusal(folder: pathlib.Path, what: str) -> str:
    return f"{folder} holds {what}, which cannot be converted; jaxformer.interop.load_pretrained reads it in Python"


def _language_model(
    name: str, found: interop.Pretrained, tokenizer: Tokenizer, length: int
) -> tuple[LanguageModelingConfig, Params]:
    vocab_size, model = tokenizer.vocab_size, found.net.config
    _check_rows(tokenizer, model.vocab_size)
    size = vocab_size + -vocab_size % VOCAB_MULTIPLE
    decoder = _decoder_with_rows(found.params["decoder"], size)
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
    name: str,
    found: interop.Pretrained,
    tokenizer: PretrainedTokenizer | MarianTokenizer,
    settings: Mapping[str, Any],
) -> tuple[TranslationConfig, Params]:
    """Returns a T5, BART, Pegasus or Marian as a translator."""
    vocab_size, config = tokenizer.vocab_size, found.net.config
    rows, encoder = min(config.source_vocab_size, config.target_vocab_size), dict(found.params["encoder"])
    # The mask token of some BARTs has no vector; it gets one of zeros, and a bias by which it is never chosen.
    if not config.output_bias or not all(map(tokenizer.is_special, range(rows, vocab_size))):
        _check_rows(tokenizer, rows)
    decoder = _decoder_with_rows(found.params["decoder"], vocab_size)
    if "tokens" in encoder.get("embeddings", {}):  # no shared table
        encoder["embeddings"] = _with_rows(encoder["embeddings"], vocab_size)
    if config.output_bias:
        bias = _resized(decoder["output_bias"], vocab_size)
        decoder["output_bias"] = jnp.where(jnp.arange(vocab_size) < rows, bias, NEVER)
    model = dataclasses.replace(config, source_vocab_size=0, target_vocab_size=0)
    data = translation.DataConfig(tokenizer="pretrained", vocab_size=vocab_size)
    result = TranslationConfig(name=name, model=model, data=data, decode=_search_of(settings), **FINE_TUNING)
    return result, found.params | {"encoder": encoder, "decoder": decoder}


def _search_of(settings: Mapping[str, Any]) -> translation.DecodeConfig:
    """Returns the search that the settings of Hugging Face describe, as far as they say anything.

    Raises:
      DataError: a value cannot be one of a search here.
    """
    given = {name: value for name, value in settings.items() if value is not None}
    same = {"num_beams": "beam_size", "no_repeat_ngram_size": "no_repeat_ngram_size"}
    found = {ours: given[name] for name, ours in same.items() if name in given}
    found["forced_end"] = "free" if "forced_eos_token_id" in given else "never"
    try:
        if found.get("beam_size", 1) != 1:
            found["stopping"] = _STOPPING.get(given.get("early_stopping", False), "now")
            found |= {"length_penalty": float(given["length_penalty"])} if "length_penalty" in given else {}
        # Their lengths count the token that the decoder begins with.
        found |= {name: max(0, given[name] - 1) for name in ("min_length", "max_length") if name in given}
        return translation.DecodeConfig(**found)
    except (TypeError, ValueError) as error:
        raise DataError(f"the settings of generation cannot be used: {error}") from None


def _masked_language_model(
    name: str, found: interop.Pretrained, tokenizer: Tokenizer, mask: int
) -> tuple[MaskedLanguageModelingConfig, Params]:
    vocab_size, model = tokenizer.vocab_size, found.net.config
    _check_rows(tokenizer, model.vocab_size)
    size, params = table_size(vocab_size), dict(found.params)
    encoder = dict(params["encoder"])
    vector = encoder["embeddings"]["tokens"]["table"][mask]
    encoder["embeddings"] = _with_rows(encoder["embeddings"], size)
    table = encoder["embeddings"]["tokens"]["table"].at[vocab_size].set(vector)
    encoder["embeddings"]["tokens"] = {"table": table}
    bias = _resized(params["output_bias"], size)
    bias = jnp.where(jnp.arange(size) < vocab_size, bias, NEVER)
    length = min(model.max_positions, masked_language_model.DataConfig.length)
    data = masked_language_model.DataConfig(tokenizer="pretrained", vocab_size=vocab_size, length=length)
    model = dataclasses.replace(model, vocab_size=0)
    config = MaskedLanguageModelingConfig(name=name, model=model, data=data, **FINE_TUNING)
    return config, params | {"encoder": encoder, "output_bias": bias}


def _decoder_with_rows(decoder: Params, size: int) -> Params:
    """Returns a decoder whose table and output projection have `size` tokens."""
    result = decoder | {"embeddings": _with_rows(decoder["embeddings"], size)}
    if "output" in decoder:
        result["output"] = {"kernel": _resized(decoder["output"]["kernel"].T, size).T}
    return result


def _with_rows(embeddings: Params, size: int) -> Params:
    return embeddings | {"tokens": {"table": _resized(embeddings["tokens"]["table"], size)}}


def _resized(table: Any, size: int) -> Any:
    """Returns the first `size` rows of a table, filled up with zeros."""
    return jnp.pad(table[:size], [(0, max(0, size - len(table)))] + [(0, 0)] * (table.ndim - 1))


def _check_rows(tokenizer: Tokenizer, rows: int) -> None:
    """Checks that a table has a row for each token.

    Raises:
      DataError: it has fewer rows.
    """
    if rows < tokenizer.vocab_size:
        raise DataError(f"the tokenizer has {tokenizer.vocab_size} tokens, but the model has vectors for {rows}")


def _write(out: pathlib.Path, config: Any, params: Params, tokenizer: Tokenizer, folder: pathlib.Path) -> None:
    setup = make_training_setup(registry.task_of(config), config, tokenizer.vocab_size, Placement(sharding.mesh("")))
    check_shapes(params, setup.network.net.shapes)
    timeout = training.save_timeout(params)
    with training.Checkpoints(out / rundir.PRETRAINED, keep_last=1, timeout=timeout) as checkpoints:
        checkpoints.save(0, params, {})
    tokenizer.save(out / "tokenizer.json")
    rundir.write_provenance(out, tokenizer=tokenizer.fingerprint, converted=str(folder.resolve()))
    rundir.write_config(out, config.task, config)  # the last file, which makes it a run
