"""Runs with a smaller vocabulary, the tokens that a corpus needs, and the proof that they compute the same."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxformer import sharding, training
from jaxformer.axes import parameter_name
from jaxformer.data.text import read_text
from jaxformer.errors import ConfigError, DataError
from jaxformer.files import check_new_folder, creating_folder, local_path
from jaxformer.modules.pure import Params
from jaxformer.sharding import Placement
from jaxformer.tasks import registry, restore, rundir
from jaxformer.tasks.base import AnyNet, Say
from jaxformer.tasks.config import Greedy, TaskConfig
from jaxformer.tasks.language_model.config import LanguageModelingConfig
from jaxformer.tasks.language_model.generator import TextGenerator
from jaxformer.tasks.text import VOCAB_MULTIPLE, run_tokenizer, saved_tokenizer
from jaxformer.tasks.training_setup import make_training_setup
from jaxformer.tasks.translation.config import TranslationConfig
from jaxformer.tasks.translation.translator import Translator
from jaxformer.tokenizers import trimming
from jaxformer.tokenizers.base import encode_texts

TIE = 1e-4
"""Two tokens whose logits differ by less are equally good: rounding chooses between them."""

TOLERANCE = 1e-5
"""The largest difference of logits, relative to the largest logit."""

LENGTH = 32
"""The number of tokens of a greedy continuation, and of the texts whose logits are compared."""

_ROWS = 8


@dataclasses.dataclass(frozen=True)
class Proof:
    """The comparisons that were made before a trimmed run was complete."""

    tables: tuple[str, ...]
    """The parameters with a row for each token; their kept rows are equal bit for bit, and so are all others."""
    logits: float
    """The largest difference of a logit of a kept token, relative to the largest logit."""
    texts: int
    """The number of texts that were translated or continued by greedy search."""
    ties: int
    """The number of them that differ where the two best tokens differ by less than `TIE`."""
    removed: int
    """The number of them that differ because the whole model chose a removed token."""
    sizes: tuple[int, int]
    """The bytes of the parameters before and after."""
    seconds: tuple[float, float]
    """The time of the greedy search, before and after, without compilation."""

    def report(self) -> list[str]:
        """Returns lines for users."""
        equal = self.texts - self.ties - self.removed
        return [
            f"tables cut: {len(self.tables)}, with kept rows that are equal bit for bit: {', '.join(self.tables)}",
            f"logits of kept tokens differ by {self.logits:.1e} of the largest at most",
            f"{equal:,} of {self.texts:,} greedy texts are equal; {self.ties:,} differ at a tie below {TIE}, and "
            f"{self.removed:,} where a removed token was chosen",
            f"parameters: {self.sizes[0]:,} bytes before, {self.sizes[1]:,} after",
            f"greedy search: {self.seconds[0]:.2f} s before, {self.seconds[1]:.2f} s after",
        ]


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
    """Makes a run with the tokens that a corpus needs from a translator or a language model.

    The new run has one set of parameters, like a converted model: it translates or generates, is exported, and other
    runs start from it with `init_from`. Adapters are merged. See `trimming.trim` for the tokens that stay.

    Args:
      corpus: text files; for a translator, those of both languages.
      checkpoint: see `restore.load`.
      sentences: the most lines whose translations, or greedy continuations, are compared.
      language: the target language of these translations, for a translator of several; see `Translator.to`.
      source: the language of their sources, for a translator whose sources begin with its token.
      say: receives lines about the vocabulary and the comparisons.

    Raises:
      ConfigError: `out` exists; the run is of another task or has an attention of its own; or its tokenizer cannot lose
        tokens. Nothing is written.
      DataError: a file is missing or holds no text; or a comparison fails, and nothing is left of the new run.
    """
    run, out = local_path(run), local_path(out)
    check_new_folder(out)
    if sentences < 1:
        raise ConfigError(f"sentences must be at least 1, got {sentences}")
    config = registry.read_config(run)
    if not isinstance(config, TranslationConfig | LanguageModelingConfig):
        raise ConfigError(f"{run} is a run of {config.task}; translators and language models can be trimmed")
    if config.attention:
        raise ConfigError(f"{run} has an attention of its own, {config.attention}, and cannot be trimmed")
    text, tokenizer = read_text(*corpus), run_tokenizer(run)
    whole = _directed(restore.predictor(run, config, checkpoint=checkpoint), language, source)
    rundir.check_vocabulary(run, tokenizer.fingerprint)
    lines = list(dict.fromkeys(line for line in text.characters.split("\n") if line.strip()))
    needed = text.lines() if isinstance(config, LanguageModelingConfig) else []
    cut = trimming.trim(tokenizer, [*lines, *needed], multiple=VOCAB_MULTIPLE)
    if len(cut.tokens) == tokenizer.vocab_size:
        raise ConfigError(f"the corpus needs all {tokenizer.vocab_size:,} tokens of {run}: there is nothing to trim")
    before, after = tokenizer.vocab_size, len(cut.tokens)
    say(f"{after:,} of {before:,} tokens stay")
    params, _ = restore.load_params(run, checkpoint, "")
    plain = dataclasses.replace(config, tune=dataclasses.replace(config.tune, adapters=None), init_from="")
    smaller = _with_vocabulary(plain, cut.tokens)
    whole_net, net = _net(plain, before), _net(smaller, after)
    small = cut_tables(params, whole_net, net, cut.tokens, before)
    facts = {"trimmed": str(run.resolve()), "tokens": [after, before], "corpus": text.fingerprint}
    if rundir.is_pretrained(run):
        facts["dtype"] = rundir.read_json(run / "provenance.json").get("dtype", "float32")
    file = saved_tokenizer(run)
    assert file is not None
    with creating_folder(out, mode=0o777) as temporary:
        with training.Checkpoints(
            temporary / rundir.PRETRAINED, keep_last=1, timeout=training.save_timeout(small)
        ) as saved:
            saved.save(0, small, {})
        cut.tokenizer.save(temporary / file.name)
        facts |= {"tokenizer": cut.tokenizer.fingerprint, "trimmed_tokenizer": tokenizer.fingerprint}
        rundir.write_provenance(temporary, **facts)
        rundir.write_config(temporary, smaller.task, smaller)
        whole = dataclasses.replace(whole, net=whole_net, params=params)
        proof = prove(whole, _directed(restore.load(temporary), language, source), cut.tokens, lines[:sentences])
    for line in proof.report():
        say(line)
    return proof


def _directed(predictor: Any, language: str, source: str) -> Any:
    """Returns a predictor that translates between two languages, if any are given.

    Raises:
      ConfigError: the run has no such languages, or needs some that are not given.
    """
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
    data = dataclasses.replace(config.data, vocab_size=len(tokens))
    decode = config.decode
    if ends := getattr(decode, "end_tokens", ()):
        numbers = {int(token): number for number, token in enumerate(tokens)}
        decode = dataclasses.replace(decode, eos_token_ids=",".join(str(numbers[token]) for token in ends))
    return dataclasses.replace(config, model=dataclasses.replace(config.model, **sizes), data=data, decode=decode)


def _net(config: TaskConfig, vocab_size: int) -> AnyNet:
    return make_training_setup(registry.task_of(config), config, vocab_size, Placement(sharding.mesh(""))).network.net


def cut_tables(params: Params, whole: AnyNet, small: AnyNet, tokens: np.ndarray, size: int) -> Params:
    """Returns the parameters of a smaller vocabulary: of each table, the rows of the tokens and those that pad it.

    A dimension whose size differs between the two networks is one of tokens.

    Args:
      size: the number of tokens of the whole vocabulary, after which the rows of padding follow.
    """

    def cut(leaf: jax.Array, before: jax.ShapeDtypeStruct, after: jax.ShapeDtypeStruct) -> jax.Array:
        assert leaf.shape == before.shape
        for axis in _token_axes(before, after):
            leaf = jnp.take(leaf, _rows(tokens, size, before.shape[axis]), axis=axis)
        assert leaf.shape == after.shape
        return leaf

    return jax.tree.map(cut, params, whole.shapes, small.shapes)


def _token_axes(before: Any, after: Any) -> list[int]:
    return [axis for axis, sizes in enumerate(zip(before.shape, after.shape, strict=True)) if len({*sizes}) > 1]


def _rows(tokens: np.ndarray, size: int, length: int) -> np.ndarray:
    return np.concatenate([tokens, np.arange(size, length)])


def prove(whole: Any, small: Any, tokens: np.ndarray, lines: Sequence[str]) -> Proof:
    """Compares a trimmed model with the whole one.

    Raises:
      DataError: a parameter or a logit differs, or a greedy text without a tie or a removed token.
    """
    tables = _same_rows(whole, small)
    decode = dataclasses.replace(whole.decode, search=Greedy())
    if isinstance(whole, TextGenerator):
        decode = dataclasses.replace(decode, max_tokens=min(LENGTH, max(1, whole.window // 2)))
    first = dataclasses.replace(whole, decode=decode)
    ends = {"eos_token_ids": small.decode.eos_token_ids} if isinstance(whole, TextGenerator) else {}
    second = dataclasses.replace(small, decode=dataclasses.replace(decode, **ends))
    (old, slow), (new, fast) = _searched(first, lines), _searched(second, lines)
    worst, ties, removed = _logits_differ(whole, small, tokens, lines, old), 0, 0
    kept = {*tokens.tolist()}
    for line, a, b in zip(lines, old, new, strict=True):
        b = tokens[list(b)].tolist() if b else []
        if list(a) == b:
            continue
        at = next((i for i, pair in enumerate(zip(a, b, strict=False)) if pair[0] != pair[1]), min(len(a), len(b)))
        eos = whole.tokenizer.special.eos
        left, right = (x[at] if at < len(x) else eos for x in (a, b))
        if left not in kept:
            removed += 1
            continue
        scores = _logits(whole, line, [*a[:at], left])[_position(whole, line, at)]
        gap = float(scores[left] - scores[right])
        if not abs(gap) < TIE:
            raise DataError(f"the trimmed run continues {line[:80]!r} in another way, by a logit of {gap:.1e}")
        ties += 1
    sizes = [sum(x.nbytes for x in jax.tree.leaves(one.params)) for one in (whole, small)]
    return Proof(tables, worst, len(lines), ties, removed, (sizes[0], sizes[1]), (slow, fast))


def _same_rows(whole: Any, small: Any) -> tuple[str, ...]:
    """Returns the names of the tables, whose rows are compared by the names of the tokens; see `prove`."""
    names = {name: token for token, name in enumerate(whole.tokenizer.names)}
    tokens = np.asarray([names[name] for name in small.tokenizer.names])
    tables = []
    pairs = zip(jax.tree_util.tree_leaves_with_path(whole.params), jax.tree.leaves(small.params), strict=True)
    for (path, before), after in pairs:
        expected = before = np.asarray(before)
        for axis in _token_axes(before, after):
            tables.append(parameter_name(path))
            expected = np.take(expected, _rows(tokens, whole.tokenizer.vocab_size, before.shape[axis]), axis)
        if expected.dtype != after.dtype or expected.tobytes() != np.asarray(after).tobytes():
            raise DataError(f"the rows of {parameter_name(path)} in the trimmed run are not those of its tokens")
    return tuple(dict.fromkeys(tables))


def _searched(predictor: Any, lines: Sequence[str]) -> tuple[list[tuple[int, ...]], float]:
    """Returns the tokens of the greedy texts, and the time of the search after its programs have been compiled."""
    search = predictor.candidates if isinstance(predictor, Translator) else predictor.continuations
    quiet = lambda message: None
    search(lines, warn=quiet)
    begin = time.perf_counter()
    found = search(lines, warn=quiet)
    return [best[0].tokens for best in found], time.perf_counter() - begin


def _source(predictor: Any, line: str) -> list[int]:
    if isinstance(predictor, Translator):
        return predictor._tokens([line], "source", 1, lambda message: None)[0].tolist()
    return encode_texts(predictor.tokenizer, [line])[0].tolist()


def _position(predictor: Any, line: str, at: int) -> int:
    return at if isinstance(predictor, Translator) else len(_source(predictor, line)) + at - 1


def _logits(predictor: Any, line: str, target: Sequence[int]) -> np.ndarray:
    """Returns the logits ``[T, V]`` of each position of a text, given its earlier tokens."""
    source, special = _source(predictor, line), predictor.tokenizer.special
    if isinstance(predictor, Translator):
        inputs = (predictor._padded([np.asarray(source)]), np.asarray([[special.bos, *target[:-1]]], np.int32))
    else:
        inputs = (np.asarray([[*source, *target[:-1]]], np.int32),)
    logits = jax.jit(predictor.net.apply)(predictor.params, *inputs)
    return np.asarray(logits[0], np.float32)


def _logits_differ(
    whole: Any, small: Any, tokens: np.ndarray, lines: Sequence[str], texts: Sequence[Sequence[int]]
) -> float:
    """Returns the largest difference of the logits of kept tokens, relative to the largest logit; see `prove`."""
    numbers, worst = {int(token): number for number, token in enumerate(tokens)}, 0.0
    for line, text in zip(lines[:_ROWS], texts, strict=False):
        kept = [token for token in text[:LENGTH] if token in numbers] or [whole.tokenizer.special.eos]
        before = _logits(whole, line, kept)[:, tokens]
        after = _logits(small, line, [numbers[token] for token in kept])[:, : len(tokens)]
        worst = max(worst, float(np.abs(before - after).max() / max(1e-30, np.abs(before).max())))
    if not worst < TOLERANCE:
        raise DataError(f"logits of the trimmed run differ by {worst:.1e} of the largest, not less than {TOLERANCE}")
    return worst
