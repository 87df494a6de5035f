"""The proof that a run with a smaller vocabulary computes what the whole run computes."""

from __future__ import annotations

import abc
import dataclasses
import functools
import time
import zlib
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from jaxformer.axes import parameter_name
from jaxformer.data.examples import pad_texts, tokenize_examples, with_types
from jaxformer.data.tagged import split_words, tokenize_words
from jaxformer.errors import DataError
from jaxformer.modules.pure import Params, Pure
from jaxformer.tasks.captioning.predictor import ImageCaptioner
from jaxformer.tasks.classification.predictor import TextClassifier, row_length
from jaxformer.tasks.config import Greedy
from jaxformer.tasks.images import normalized
from jaxformer.tasks.language_model.generator import TextGenerator
from jaxformer.tasks.masked_language_model.task import MaskedPredictor
from jaxformer.tasks.tagging.predictor import Tagger
from jaxformer.tasks.translation.translator import Translator
from jaxformer.tokenizers.base import Tokenizer, encode_texts

TIE = 1e-4
"""Two answers whose logits differ by less are equally good: rounding chooses between them."""

TOLERANCE = 1e-5
"""The largest difference of logits, relative to the largest logit."""

LENGTH = 32
"""The number of tokens of a greedy text whose logits are compared, and of a continuation."""

MASKED = 7
"""The distance between the tokens that are hidden from a masked language model."""

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Proof:
    """The comparisons that were made before a trimmed run was complete."""

    tables: tuple[str, ...]
    """The parameters with a row for each token; their kept rows are equal bit for bit, and so are all others."""
    logits: float
    """The largest difference of a logit of a kept token, or of a class, relative to the largest logit of its text."""
    what: str
    """The kind of results: greedy translations, continuations or captions; guesses, classes or labels."""
    texts: int
    """The number of texts with such results."""
    ties: int
    """The number of them that differ where the logits of two answers differ by less than `TIE`."""
    removed: int
    """The number of them that differ because the whole model chose a removed token."""
    sizes: tuple[int, int]
    """The bytes of the parameters before and after."""
    seconds: tuple[float, float]
    """The time of these results, before and after, without compilation."""

    def report(self) -> list[str]:
        """Returns lines for users."""
        equal = self.texts - self.ties - self.removed
        return [
            f"tables cut: {len(self.tables)}, with kept rows that are equal bit for bit: {', '.join(self.tables)}",
            f"logits of {self.texts:,} texts differ by {self.logits:.1e} of the largest at most",
            f"{self.what} of {equal:,} of {self.texts:,} texts are equal; those of {self.ties:,} differ at a tie below "
            f"{TIE}, and of {self.removed:,} where a removed token was chosen",
            f"parameters: {self.sizes[0]:,} bytes before, {self.sizes[1]:,} after",
            f"{self.what}: {self.seconds[0]:.2f} s before, {self.seconds[1]:.2f} s after",
        ]


def prove(whole: Any, small: Any, tokens: np.ndarray, lines: Sequence[str]) -> Proof:
    """Compares the predictor of a trimmed run with that of the whole one.

    The parameters are compared bit for bit. So are the results of each line: greedy translations, continuations, or
    captions of an image of noise, and the logits of their first `LENGTH` tokens; a masked language model's guesses at
    every seventh token; classes; and labels of words, all with their logits.

    Args:
      tokens: the id ``[V]`` of each kept token in the whole run.

    Raises:
      DataError: a parameter or a logit differs, or a result without a tie or a removed token.
    """
    tables = same_rows(whole, small)
    before, after = (_side(one) for one in (whole, small))
    compare = _same_texts if isinstance(before, _Generator) else _same_labels
    worst, ties, removed, seconds = compare(before, after, tokens, lines)
    if not worst < TOLERANCE:
        raise DataError(f"logits of the trimmed run differ by {worst:.1e} of the largest, not less than {TOLERANCE}")
    sizes = [sum(x.nbytes for x in jax.tree.leaves(one.params)) for one in (whole, small)]
    return Proof(tables, worst, before.what, len(lines), ties, removed, (sizes[0], sizes[1]), seconds)


def token_axes(before: Any, after: Any) -> list[int]:
    """Returns the axes of tokens of a parameter: those whose sizes in the two networks differ."""
    return [axis for axis, sizes in enumerate(zip(before.shape, after.shape, strict=True)) if len({*sizes}) > 1]


def rows(tokens: np.ndarray, size: int, length: int) -> np.ndarray:
    """Returns the rows that stay of a table of `length`: of the tokens, and all after a vocabulary of `size`."""
    return np.concatenate([tokens, np.arange(size, length)])


def same_rows(whole: Any, small: Any) -> tuple[str, ...]:
    """Returns the names of the tables, whose rows are compared by the names of the tokens; see `prove`."""
    ours, theirs = (tokenizer_of(one) for one in (small, whole))
    names = {name: token for token, name in enumerate(theirs.names)}
    tokens = np.asarray([names[name] for name in ours.names])
    tables = []
    pairs = zip(jax.tree_util.tree_leaves_with_path(whole.params), jax.tree.leaves(small.params), strict=True)
    for (path, before), after in pairs:
        expected = before = np.asarray(before)
        for axis in token_axes(before, after):
            tables.append(parameter_name(path))
            expected = np.take(expected, rows(tokens, theirs.vocab_size, before.shape[axis]), axis)
        if expected.dtype != after.dtype or expected.tobytes() != np.asarray(after).tobytes():
            raise DataError(f"the rows of {parameter_name(path)} in the trimmed run are not those of its tokens")
    return tuple(dict.fromkeys(tables))


def tokenizer_of(predictor: Any) -> Tokenizer:
    """Returns the tokenizer of a predictor, whose vocabulary may have classes too."""
    return predictor.tokenizer if hasattr(predictor, "tokenizer") else predictor.vocabulary.tokenizer


@dataclasses.dataclass(frozen=True)
class _Side:
    """A predictor as the comparisons use it."""

    predictor: Any
    what = ""

    @property
    def tokenizer(self) -> Tokenizer:
        return tokenizer_of(self.predictor)

    def _logits(self, *inputs: Any) -> np.ndarray:
        return np.asarray(_apply(self.predictor.net, self.predictor.params, *inputs)[0], np.float32)

    def _row(self, ids: Sequence[int]) -> np.ndarray:
        """Returns a padded row ``[1, T]``, for few programs; padding on the right changes no earlier logit."""
        length = -(-len(ids) // LENGTH) * LENGTH
        length = max(len(ids), min(length, self.predictor.net.config.length_limit or length))
        return np.pad(np.asarray(ids, np.int32), (0, length - len(ids)))[None]


class _Generator(_Side, abc.ABC):
    """A predictor that generates texts."""

    @abc.abstractmethod
    def texts(self, lines: Sequence[str]) -> list[tuple[int, ...]]:
        """Returns the tokens of the greedy text of each line."""

    def logits(self, line: str, text: Sequence[int]) -> np.ndarray:
        """Returns the logits ``[T, V]`` of each token of a text, given those before it."""
        return self._logits(*self._source(line), self._row([self._special.bos, *text[:-1]]))[: len(text)]

    def _source(self, line: str) -> tuple[Any, ...]:
        raise NotImplementedError

    @property
    def _special(self):
        return self.tokenizer.special

    @property
    def _greedy(self) -> Any:
        return dataclasses.replace(self.predictor, decode=dataclasses.replace(self.predictor.decode, search=Greedy()))


class _Translations(_Generator):
    what = "greedy translations"

    def texts(self, lines):
        return [best[0].tokens for best in self._greedy.candidates(lines, warn=_quiet)]

    def _source(self, line):
        (source,) = self.predictor._tokens([line], "source", 1, _quiet)
        return (self.predictor._padded([source]),)


class _Captions(_Generator):
    what = "greedy captions"

    def texts(self, lines):
        return [best[0].tokens for best in self._greedy.candidates(np.stack([*map(self._image, lines)]))]

    def _image(self, line: str) -> np.ndarray:
        """Returns noise."""
        random = np.random.default_rng(zlib.crc32(line.encode()))
        return random.integers(0, 256, self.predictor.shape, np.uint8)

    def _source(self, line):
        return (np.asarray(normalized(jnp.asarray(self._image(line)[None]))),)


class _Continuations(_Generator):
    what = "greedy continuations"

    def texts(self, lines):
        generator = self._greedy
        most = min(LENGTH, max(1, generator.window // 2))
        generator = dataclasses.replace(generator, decode=dataclasses.replace(generator.decode, max_tokens=most))
        return [best[0].tokens for best in generator.continuations(lines, warn=_quiet)]

    def logits(self, line, text):
        before = self.predictor._context(encode_texts(self.tokenizer, [line])[0].tolist())
        ids = [*before, *text[:-1]]
        return self._logits(self._row(ids))[len(ids) - len(text) : len(ids)]


class _Labels(_Side, abc.ABC):
    """A predictor that chooses among classes or tokens, at one or several places of a text."""

    @abc.abstractmethod
    def logits(self, line: str) -> np.ndarray:
        """Returns the logits of the choices at each place ``[places, choices]``."""


class _Guesses(_Labels):
    what = "guesses at masked tokens"

    def logits(self, line):
        masked, size = self.predictor, self.tokenizer.vocab_size
        ids = masked._encode(line)[: masked.net.config.length_limit]
        places = [*range(1, len(ids) - 1, MASKED)] or [0]
        for place in places:
            ids[place] = size
        return self._logits(masked._tokens(ids), self._row(places))[: len(places), :size]


class _Classes(_Labels):
    what = "classes"

    def logits(self, line):
        classifier, special = self.predictor, self.tokenizer.special
        most = classifier.max_length - 2
        text = line.strip()
        if classifier.has_pairs:  # a line that is no pair is one with itself
            first, _, second = map(str.strip, text.partition("\t"))
            text = "\t".join((first, second.replace("\t", " ") or first))
        ids, _ = tokenize_examples([text], self.tokenizer.encode, special, most=most, has_pairs=classifier.has_pairs)
        length = row_length(min(int(ids.lengths[0]), most) + 2, classifier.max_length)
        tokens = pad_texts(ids, (1, length), special)
        if classifier.has_pairs and classifier.net.config.num_token_types > 1:
            tokens = with_types(tokens, special)
        return self._logits(tokens)[None]


class _WordLabels(_Labels):
    what = "labels of words"

    def logits(self, line):
        words = split_words(line) or (line.strip(),)
        tokenized = tokenize_words([words], self.tokenizer, self.predictor.max_length - 2)
        ids = tokenized.parts.take(np.array([0]))
        length = row_length(int(ids.lengths[0]) + 2, self.predictor.max_length)
        return self._logits(pad_texts(ids, (1, length), self.tokenizer.special))[tokenized.places(0)]


_SIDES: dict[type, Callable[[Any], _Side]] = {
    Translator: _Translations,
    TextGenerator: _Continuations,
    ImageCaptioner: _Captions,
    MaskedPredictor: _Guesses,
    TextClassifier: _Classes,
    Tagger: _WordLabels,
}


def _side(predictor: Any) -> Any:
    return _SIDES[type(predictor)](predictor)


@functools.partial(jax.jit, static_argnums=0)
def _apply(net: Pure, params: Params, *inputs: Any) -> jax.Array:
    return net.apply(params, *inputs)


def _quiet(message: str) -> None: ...


def _timed(results: Callable[[], T]) -> tuple[T, float]:
    """Returns results, and the time to compute them after their programs have been compiled."""
    results()
    begin = time.perf_counter()
    return results(), time.perf_counter() - begin


Found = tuple[float, int, int, tuple[float, float]]
"""The largest relative difference of logits, the numbers of ties and removed tokens, and the seconds of both sides."""


def _difference(before: np.ndarray, after: np.ndarray) -> float:
    return float(np.abs(before - after).max() / max(1e-30, np.abs(before).max()))


def _same_texts(whole: Any, small: Any, tokens: np.ndarray, lines: Sequence[str]) -> Found:
    """Compares greedy texts and the logits of their tokens; see `prove`."""
    (old, slow), (new, fast) = (_timed(lambda side=side: side.texts(lines)) for side in (whole, small))
    numbers = {token: number for number, token in enumerate(tokens.tolist())}
    eos, worst, ties, removed = whole.tokenizer.special.eos, 0.0, 0, 0
    for line, text, other in zip(lines, old, new, strict=True):
        kept = [token for token in text[:LENGTH] if token in numbers] or [eos]
        before, after = whole.logits(line, kept), small.logits(line, [numbers[token] for token in kept])
        worst = max(worst, _difference(before[:, tokens], after[:, : len(tokens)]))
        mapped = tokens[list(other)].tolist()
        if [*text] == mapped:
            continue
        pairs = enumerate(zip(text, mapped, strict=False))
        at = next((i for i, pair in pairs if pair[0] != pair[1]), min(len(text), len(mapped)))
        left, right = (x[at] if at < len(x) else eos for x in (text, mapped))
        if left not in numbers:
            removed += 1
            continue
        last = whole.logits(line, [*text[:at], left])[-1]
        _check_tie(line, float(last[left] - last[right]))
        ties += 1
    return worst, ties, removed, (slow, fast)


def _same_labels(whole: Any, small: Any, tokens: np.ndarray, lines: Sequence[str]) -> Found:
    """Compares the best choices and all their logits; see `prove`."""
    results = [_timed(lambda side=side: [side.logits(line) for line in lines]) for side in (whole, small)]
    (old, slow), (new, fast) = results
    worst, ties, removed = 0.0, 0, 0
    for line, before, after in zip(lines, old, new, strict=True):
        choices = tokens if isinstance(whole, _Guesses) else np.arange(before.shape[1])
        worst = max(worst, _difference(before[:, choices], after))
        left, right = before.argmax(1), choices[after.argmax(1)]
        others = np.flatnonzero(left != right)
        lost = ~np.isin(left[others], choices)
        for place in others[~lost]:
            _check_tie(line, float(before[place, left[place]] - before[place, right[place]]))
        removed += bool(lost.any())
        ties += bool(len(others)) and not lost.any()
    return worst, ties, removed, (slow, fast)


def _check_tie(line: str, gap: float) -> None:
    if not abs(gap) < TIE:
        raise DataError(f"the trimmed run chooses otherwise for {line[:80]!r}, by a logit of {gap:.1e}")
