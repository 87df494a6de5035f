"""Runs made from pretrained models: language models like GPT-2, masked ones like BERT, translators like Marian and T5.

Such a run has parameters and no checkpoints. It generates, scores and fills like one that was trained here, and other
runs start from it with `init_from`.
"""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib

import jax
import jax.numpy as jnp

from jaxformer import interop, models, sharding, training
from jaxformer.errors import ConfigError, DataError
from jaxformer.files import JsonObject, local_path, write_text
from jaxformer.interop import hub
from jaxformer.interop.tensors import Settings, check_folder, read_json
from jaxformer.modules.pure import Params, check_shapes, pure
from jaxformer.sharding import Placement
from jaxformer.tasks import language_model, masked_language_model, registry, run_lock, rundir, translation
from jaxformer.tasks.base import Say
from jaxformer.tasks.config import TaskConfig, TuneConfig
from jaxformer.tasks.language_model.config import LanguageModelingConfig
from jaxformer.tasks.masked_language_model.config import MaskedLanguageModelingConfig
from jaxformer.tasks.pretrained.generation_config import (
    from_generation,
    from_text_generation,
    of_model,
    without_special_words,
)
from jaxformer.tasks.pretrained.languages import with_languages
from jaxformer.tasks.text import VOCAB_MULTIPLE, table_size
from jaxformer.tasks.training_setup import make_training_setup
from jaxformer.tasks.translation.config import TranslationConfig
from jaxformer.tokenizers.base import Tokenizer
from jaxformer.tokenizers.folders import read_languages, read_tokenizer
from jaxformer.tokenizers.languages import class_with_languages
from jaxformer.tokenizers.pretrained import MarianTokenizer, PretrainedTokenizer
from jaxformer.training.config import AdamConfig, LinearDecay, TrainConfig

NEVER = -1e4
"""The logit bias of rows that pad a table, whose tokens never occur."""

LENGTH = 1024
"""The maximum context length, unless a larger one is requested."""

_HEADS = ("classification_head.", "qa_outputs.", "score.")
"""Prefixes of the names of a classifier's tensors; such a model was not trained to generate text."""

FINE_TUNING: JsonObject = {
    "optimizer": AdamConfig(learning_rate=5e-5, schedule=LinearDecay(), warmup_steps=100, clip_norm=1.0),
    "train": TrainConfig(steps=2000, validate_every=200, checkpoint_every=200),
}
"""The settings with which training starts from such a run, unless others are given."""


def convert(
    folder: str | os.PathLike[str], out: str | os.PathLike[str], *, length: int = 0, say: Say = lambda text: None
) -> TaskConfig:
    """Makes a run from a Hugging Face folder with ``config.json``, safetensors and the files of the tokenizer.

    If there is no such folder, it may be the name of a model at huggingface.co: see `interop.hub.snapshot`.

    Tables keep the rows of the tokenizer's vocabulary, padded as in training; other rows are left out. The mask token
    of a masked language model gets the id that it has in this library, the first after the vocabulary.

    Returns the configuration of the run.

    Args:
      length: the most tokens that a language model reads; 0 for its positions, or `LENGTH` if it has more.
      say: receives a line if a language model has more positions than that, one about the settings of its search that
        have no counterpart, if there are any, and one about an encoder without a head.

    Raises:
      ConfigError: `out` exists and is not empty; `length` is more than the number of positions, or is given for a model
        that is not a language model; or a package of the extra `pretrained` is not installed.
      DataError: the folder cannot be read (see `interop.load_pretrained`), has no tokenizer, or holds a model of
        another kind.
    """
    folder, out = local_path(folder), local_path(out)
    if length < 0:
        raise ConfigError(f"length must be at least 0, got {length}")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"{out} is not empty; name a new folder")
    name = folder.resolve().name
    provenance: dict[str, object] = {"converted": str(folder.resolve())}
    if fetched := hub.snapshot(folder):
        folder, name = fetched.folder, fetched.name.partition("/")[2]
        provenance = {"converted": fetched.name, "revision": fetched.revision, "files": fetched.hashes}
    elif not folder.is_dir():
        raise DataError(f"{folder} is not a folder; to download a model, give its name, ORG/NAME or ORG/NAME@REVISION")
    check_folder(folder)
    settings, generation = _settings(folder)
    tokenizer, names = read_tokenizer(folder, settings)
    found = interop.load_pretrained(folder)
    if any(tensor.startswith(_HEADS) for tensor in found.unused):
        raise DataError(_refusal(folder, f"a {found.family} with the head of a classifier"))
    if length and found.net.model is not models.LanguageModel:
        raise ConfigError(f"length is for language models, and {folder} holds a {found.family}")
    if found.net.model is models.LanguageModel:
        decode, lost = from_text_generation(generation, tokenizer)
        if lost:
            named = ", ".join(f"{name} {value!r}" for name, value in lost.items())
            say(f"the run does not have {named}, which jaxformer does not support; texts that they change differ")
        config, params = _language_model(name, found, tokenizer, length, decode, say)
    elif found.net.model is models.EncoderDecoder:
        config, params = _text_to_text(name, found, tokenizer, generation)
        config = dataclasses.replace(config, data=dataclasses.replace(config.data, **read_languages(folder)))
    else:
        mask = tokenizer.id_of(names.get("mask_token", ""))
        if found.net.model is not models.MaskedLanguageModel:
            left_out = f"; {', '.join(found.unused)} are left out" if found.unused else ""
            say(f"the run is an encoder without a head, for --init-from of a classifier{left_out}")
            provenance, found = provenance | {"encoder": found.family}, _with_new_head(found)
            mask = tokenizer.special.unk if mask is None else mask
        if mask is None:
            raise DataError(f"the tokenizer of {folder} has no mask token")
        config, params = _masked_language_model(name, found, tokenizer, mask)
    with run_lock.held(out):
        _write(out, config, params, tokenizer, generation, provenance | {"dtype": found.settings["dtype"]})
    return config


def _settings(folder: pathlib.Path) -> tuple[JsonObject, JsonObject]:
    """Returns the settings of a model with the ids of both files, and those of its generation.

    If there is a ``generation_config.json``, the search settings in ``config.json`` are ignored, as in transformers.
    """
    settings = read_json(folder / "config.json")
    if "model_type" not in settings and "task" in settings:
        raise DataError(f"{folder} is already a run; all commands read it without conversion")
    if (kind := str(settings.get("model_type"))) == "vit":
        raise DataError(_refusal(folder, "a vit"))
    if kind == "mbart" and not class_with_languages(folder, kind):
        raise DataError(_refusal(folder, "an mbart, whose texts end with codes of languages, unlike those of mBART-50"))
    path = folder / "generation_config.json"
    generation = read_json(path) if path.exists() else of_model(settings)
    return settings | generation, generation


def _refusal(folder: pathlib.Path, what: str) -> str:
    return f"{folder} holds {what}, which cannot be converted; jaxformer.interop.load_pretrained reads it in Python"


def _language_model(
    name: str,
    found: interop.Pretrained,
    tokenizer: Tokenizer,
    length: int,
    decode: language_model.DecodeConfig,
    say: Say,
) -> tuple[LanguageModelingConfig, Params]:
    vocab_size, model = tokenizer.vocab_size, found.net.config
    _check_rows(tokenizer, model.vocab_size)
    size = vocab_size + -vocab_size % VOCAB_MULTIPLE
    decoder = decoder_with_rows(found.params["decoder"], size)
    if size > model.vocab_size:  # rows of zeros have logits of 0, which would be the largest of some models
        decoder["output_bias"] = jnp.where(jnp.arange(size) < model.vocab_size, 0.0, NEVER)
    most = model.max_positions
    if length > most:
        raise ConfigError(f"length must be at most {most}, the positions of the model, got {length}")
    if not length and most > LENGTH:
        say(f"the run reads texts of {LENGTH:,} tokens, and the model {most:,}: convert with a length of up to {most}")
    length = length or min(most, LENGTH)
    data = language_model.DataConfig(tokenizer="pretrained", vocab_size=vocab_size, length=length, batch_size=8)
    model = dataclasses.replace(model, vocab_size=0, output_bias="output_bias" in decoder)
    tune = TuneConfig(frozen="decoder/output_bias" if model.output_bias else "")  # which no family has
    config = LanguageModelingConfig(name=name, model=model, data=data, decode=decode, tune=tune, **FINE_TUNING)
    return config, {"decoder": decoder}


def _text_to_text(
    name: str,
    found: interop.Pretrained,
    tokenizer: PretrainedTokenizer | MarianTokenizer,
    generation: Settings,
) -> tuple[TranslationConfig, Params]:
    """Returns a T5, BART, Pegasus, Marian, M2M100 or mBART-50 as a translator."""
    vocab_size, config = tokenizer.vocab_size, found.net.config
    rows, encoder = min(config.source_vocab_size, config.target_vocab_size), dict(found.params["encoder"])
    # The mask token of some BARTs has no vector; it gets one of zeros, and a bias by which it is never chosen.
    needed, missing = tokenizer.special.ids | {*tokenizer.start}, range(rows, vocab_size)
    if not config.output_bias or max(needed) >= rows or not all(map(tokenizer.is_special, missing)):
        _check_rows(tokenizer, rows)
    decoder = decoder_with_rows(found.params["decoder"], vocab_size)
    if "tokens" in encoder.get("embeddings", {}):  # no shared table
        encoder["embeddings"] = with_rows(encoder["embeddings"], vocab_size)
    if config.output_bias:
        bias = resized(decoder["output_bias"], vocab_size)
        decoder["output_bias"] = jnp.where(jnp.arange(vocab_size) < rows, bias, NEVER)
    model = dataclasses.replace(config, source_vocab_size=0, target_vocab_size=0)
    languages, generation = with_languages(tokenizer, generation) if tokenizer.tags else ({}, generation)
    data = translation.DataConfig(tokenizer="pretrained", vocab_size=vocab_size)
    data = dataclasses.replace(data, **languages)
    generation, never = without_special_words(generation, tokenizer)
    decode = from_generation(generation, tokenizer.special, tokenizer.start)
    decode = dataclasses.replace(decode, forbid=never) if never else decode
    result = TranslationConfig(name=name, model=model, data=data, decode=decode, **FINE_TUNING)
    return result, found.params | {"encoder": encoder, "decoder": decoder}


def _masked_language_model(
    name: str, found: interop.Pretrained, tokenizer: Tokenizer, mask: int
) -> tuple[MaskedLanguageModelingConfig, Params]:
    vocab_size, model = tokenizer.vocab_size, found.net.config
    _check_rows(tokenizer, model.vocab_size)
    size, params = table_size(vocab_size), dict(found.params)
    encoder = dict(params["encoder"])
    vector = encoder["embeddings"]["tokens"]["table"][mask]
    encoder["embeddings"] = with_rows(encoder["embeddings"], size)
    table = encoder["embeddings"]["tokens"]["table"].at[vocab_size].set(vector)
    encoder["embeddings"]["tokens"] = {"table": table}
    bias = resized(params["output_bias"], size)
    bias = jnp.where(jnp.arange(size) < vocab_size, bias, NEVER)
    length = min(model.max_positions, masked_language_model.DataConfig.length)
    data = masked_language_model.DataConfig(tokenizer="pretrained", vocab_size=vocab_size, length=length)
    model = dataclasses.replace(model, vocab_size=0)
    config = MaskedLanguageModelingConfig(name=name, model=model, data=data, **FINE_TUNING)
    return config, params | {"encoder": encoder, "output_bias": bias}


def _with_new_head(found: interop.Pretrained) -> interop.Pretrained:
    """Returns an encoder as a masked language model, whose head has no meaning."""
    net = pure(models.MaskedLanguageModel, found.net.config)
    params = {**net.init(jax.random.key(0)), "encoder": found.params}
    return dataclasses.replace(found, net=net, params=params)


def _check_rows(tokenizer: Tokenizer, rows: int) -> None:
    """Checks that a table has a row for each token."""
    if rows < tokenizer.vocab_size:
        raise DataError(f"the tokenizer has {tokenizer.vocab_size} tokens, but the model has vectors for {rows}")


def _write(
    out: pathlib.Path,
    config: TaskConfig,
    params: Params,
    tokenizer: Tokenizer,
    generation: Settings,
    provenance: Settings,
) -> None:
    setup = make_training_setup(registry.task_of(config), config, tokenizer.vocab_size, Placement(sharding.mesh("")))
    check_shapes(params, setup.network.net.shapes)
    timeout = training.save_timeout(params)
    with training.Checkpoints(out / rundir.PRETRAINED, keep_last=1, timeout=timeout) as checkpoints:
        checkpoints.save(0, params, {})
    tokenizer.save(out / "tokenizer.json")
    if not isinstance(config, MaskedLanguageModelingConfig):
        write_text(out / rundir.GENERATION, json.dumps(generation, indent=2) + "\n")
    rundir.write_provenance(out, tokenizer=tokenizer.fingerprint, **provenance)
    rundir.write_config(out, config.task, config)  # the last file, which makes it a run


def resized(table: jax.Array, size: int) -> jax.Array:
    """Returns the first `size` rows of a table, padded with zeros."""
    return jnp.pad(table[:size], [(0, max(0, size - len(table)))] + [(0, 0)] * (table.ndim - 1))


def with_rows(embeddings: Params, size: int) -> Params:
    """Returns embeddings whose table has `size` tokens."""
    return embeddings | {"tokens": {"table": resized(embeddings["tokens"]["table"], size)}}


def decoder_with_rows(decoder: Params, size: int) -> Params:
    """Returns a decoder whose table and output projection have `size` tokens."""
    result = decoder | {"embeddings": with_rows(decoder["embeddings"], size)}
    if "output" in decoder:
        result["output"] = {"kernel": resized(decoder["output"]["kernel"].T, size).T}
    return result
