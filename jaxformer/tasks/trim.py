"""Runs with a smaller vocabulary: the tokens that a corpus needs."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import shutil
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxformer import training
from jaxformer.data.text import Text, read_text
from jaxformer.digests import short_digest
from jaxformer.errors import ConfigError
from jaxformer.files import JsonObject, check_new_folder, creating_folder, local_path
from jaxformer.modules import LoRA
from jaxformer.modules.pure import Params
from jaxformer.tasks import classes, registry, restore, rundir
from jaxformer.tasks.base import AnyNet, Say
from jaxformer.tasks.captioning.config import CaptioningConfig
from jaxformer.tasks.classification.config import LabelingConfig
from jaxformer.tasks.config import TaskConfig
from jaxformer.tasks.language_model.config import LanguageModelingConfig
from jaxformer.tasks.masked_language_model.config import MaskedLanguageModelingConfig
from jaxformer.tasks.text import VOCAB_MULTIPLE, run_tokenizer, saved_tokenizer
from jaxformer.tasks.translation.config import TranslationConfig
from jaxformer.tasks.translation.translator import Translator
from jaxformer.tasks.trim_proof import Proof, prove, rows, token_axes
from jaxformer.tokenizers import trimming
from jaxformer.tokenizers.base import Tokenizer

CONFIGS = (
    TranslationConfig,
    LanguageModelingConfig,
    MaskedLanguageModelingConfig,
    LabelingConfig,
    CaptioningConfig,
)
"""The configurations of the runs that can be trimmed."""


def trim(
    run: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    corpus: Sequence[str | os.PathLike[str]],
    checkpoint: str = "best",
    sentences: int = 200,
    language: str = "",
    source: str = "",
    say: Say = lambda text: None,
) -> Proof:
    """Makes a run with the tokens that a corpus needs from a run of any task with a vocabulary.

    The new run has one set of parameters, like a converted model: it translates, generates or classifies, is exported,
    and other runs start from it with `init_from`. Adapters are merged. See `trimming.trim` for the tokens that stay.

    Args:
      corpus: text files; for a translator, those of both languages.
      checkpoint: see `restore.load`.
      sentences: the most lines that are compared; see `trim_proof.prove`.
      language: the target language of these translations, for a translator of several; see `Translator.to`.
      source: the language of their sources, for a translator whose sources begin with its token.
      say: receives lines about the vocabulary and the comparisons.

    Raises:
      ConfigError: `out` exists; the run has no vocabulary or an attention of its own; or its tokenizer cannot lose
        tokens. Nothing is written.
      DataError: a file is missing or holds no text; or a comparison fails, and nothing is left of the new run.
    """
    run, out = local_path(run), local_path(out)
    check_new_folder(out)
    if sentences < 1:
        raise ConfigError(f"sentences must be at least 1, got {sentences}")
    config = registry.read_config(run)
    if not isinstance(config, CONFIGS):
        raise ConfigError(f"{run} is a run of {config.task}, which has no vocabulary of texts to trim")
    if config.attention:
        raise ConfigError(f"{run} has an attention of its own, {config.attention}, and cannot be trimmed")
    text, tokenizer = read_text(*corpus), run_tokenizer(run)
    lines = list(dict.fromkeys(line for line in text.characters.split("\n") if line.strip()))
    whole = _directed(restore.any_predictor(run, config, checkpoint=checkpoint), language, source)
    plain = dataclasses.replace(config, tune=dataclasses.replace(config.tune, adapters=None), init_from="")
    params = whole.net.merged(whole.params) if isinstance(whole.net, LoRA) else whole.params
    whole = dataclasses.replace(whole, net=restore.run_setup(run, plain).network.net, params=params)
    cut = _cut(run, config, tokenizer, text, lines)
    say(f"{len(cut.tokens):,} of {tokenizer.vocab_size:,} tokens stay")
    smaller, file = _with_vocabulary(plain, cut.tokens), saved_tokenizer(run)
    assert file is not None
    with creating_folder(out, mode=0o777) as temporary:
        cut.tokenizer.save(temporary / file.name)
        if (run / classes.FILE).exists():
            shutil.copyfile(run / classes.FILE, temporary / classes.FILE)
        net = restore.run_setup(temporary, smaller).network.net
        small = cut_tables(params, whole.net, net, cut.tokens, tokenizer.vocab_size)
        with training.Checkpoints(
            temporary / rundir.PRETRAINED, keep_last=1, timeout=training.save_timeout(small)
        ) as saved:
            saved.save(0, small, {})
        facts = {"corpus": text.fingerprint, **_facts(run, tokenizer, params, cut)}
        vocabulary = registry.task_of(smaller).vocabulary(temporary)
        rundir.write_provenance(temporary, **facts, tokenizer=vocabulary.fingerprint)
        rundir.write_config(temporary, smaller.task, smaller)
        trimmed = _directed(restore.any_predictor(temporary, smaller), language, source)
        proof = prove(whole, trimmed, cut.tokens, lines[:sentences])
    for line in proof.report():
        say(line)
    return proof


def _cut(
    run: pathlib.Path, config: TaskConfig, tokenizer: Tokenizer, text: Text, lines: Sequence[str]
) -> trimming.Trimmed:
    """Returns the smaller tokenizer."""
    needed = text.lines() if isinstance(config, LanguageModelingConfig) else []  # with line breaks
    cut = trimming.trim(tokenizer, [*lines, *needed], multiple=VOCAB_MULTIPLE, more=_ends(config))
    if len(cut.tokens) == tokenizer.vocab_size:
        raise ConfigError(f"the corpus needs all {tokenizer.vocab_size:,} tokens of {run}: there is nothing to trim")
    return cut


def _facts(run: pathlib.Path, tokenizer: Tokenizer, params: Params, cut: trimming.Trimmed) -> JsonObject:
    """Returns the facts that name the whole run and the tokens of the smaller one."""
    before = rundir.read_optional_json(run / "provenance.json")
    leaves = jax.tree_util.tree_leaves_with_path(params)
    content = (part for path, x in leaves for part in (jax.tree_util.keystr(path), np.asarray(x).tobytes()))
    inherited = ("converted", "revision", "files", "encoder")
    facts = {name: before[name] for name in inherited if name in before}
    if rundir.is_pretrained(run):
        facts["dtype"] = before.get("dtype", "float32")
    return facts | {
        "trimmed": str(run.resolve()),
        "trimmed_tokenizer": tokenizer.fingerprint,
        "trimmed_parameters": short_digest(content),
        "tokens": [len(cut.tokens), tokenizer.vocab_size],
        "kept": _ranges(cut.tokens),
    }


def _ranges(tokens: np.ndarray) -> str:
    """Returns sorted ids as text, such as ``0-258,260``."""
    parts = np.split(tokens, 1 + np.flatnonzero(np.diff(tokens) > 1))
    return ",".join(str(part[0]) if len(part) == 1 else f"{part[0]}-{part[-1]}" for part in parts)


def _directed(predictor: Any, language: str, source: str) -> Any:
    """Returns a predictor that translates between two languages, if any are given; refuses those that it lacks."""
    if not isinstance(predictor, Translator):
        if language or source:
            raise ConfigError(f"the language {language or source} has no effect: the run does not translate")
        return predictor
    if language or source:
        predictor = predictor.to(language, source)
    for side in ("source", "target"):
        predictor._begin(side)
    return predictor


def _with_vocabulary(config: Any, tokens: np.ndarray) -> Any:
    """Returns the configuration of a run with only these tokens."""
    sizes = {name: 0 for name in vars(config.model) if name.endswith("vocab_size")}
    changes: JsonObject = {
        "model": dataclasses.replace(config.model, **sizes),
        "data": dataclasses.replace(config.data, vocab_size=len(tokens)),
    }
    if ends := _ends(config):
        numbers = {int(token): number for number, token in enumerate(tokens)}
        ids = ",".join(str(numbers[token]) for token in ends)
        changes["decode"] = dataclasses.replace(config.decode, eos_token_ids=ids)
    return dataclasses.replace(config, **changes)


def _ends(config: Any) -> tuple[int, ...]:
    """Returns the tokens of `decode.eos_token_ids` that end a text."""
    return getattr(getattr(config, "decode", None), "end_tokens", ())


def cut_tables(params: Params, whole: AnyNet, small: AnyNet, tokens: np.ndarray, size: int) -> Params:
    """Returns the parameters of a smaller vocabulary: of each table, the rows of the tokens and those that pad it.

    A dimension whose size differs between the two networks is one of tokens.

    Args:
      size: the number of tokens of the whole vocabulary, after which the rows of padding follow.
    """

    def cut(leaf: jax.Array, before: jax.ShapeDtypeStruct, after: jax.ShapeDtypeStruct) -> jax.Array:
        assert leaf.shape == before.shape
        for axis in token_axes(before, after):
            leaf = jnp.take(leaf, rows(tokens, size, before.shape[axis]), axis=axis)
        assert leaf.shape == after.shape
        return leaf

    return jax.tree.map(cut, params, whole.shapes, small.shapes)
