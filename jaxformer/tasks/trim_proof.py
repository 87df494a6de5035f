"""The proof that a run with a smaller vocabulary computes what the whole run computes."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import time
import zlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from jaxformer.axes import parameter_name
from jaxformer.data.examples import pad_texts
from jaxformer.data.tagged import split_words, tokenize_words
from jaxformer.errors import DataError
from jaxformer.modules.pure import Params, Pure
from jaxformer.reprs import brief
from jaxformer.tasks.captioning.predictor import ImageCaptioner
from jaxformer.tasks.classification.predictor import TextClassifier, row_length
from jaxformer.tasks.config import Greedy
from jaxformer.tasks.images import normalized
from jaxformer.tasks.language_model.generator import TextGenerator
from jaxformer.tasks.masked_language_model.task import MaskedPredictor
from jaxformer.tasks.tagging.task import Tagger
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
    tables, kind = same_rows(whole, small), _KINDS[type(whole)]
    (old, slow), (new, fast) = (_timed(functools.partial(kind.answers, one, lines)) for one in (whole, small))
    worst, ties, removed = 0.0, 0, 0
    for line, theirs, ours in zip(lines, old, new, strict=True):
        difference, num_ties, num_removed = compare(kind, whole, small, tokens, line, theirs, ours)
        worst, removed = float(np.maximum(worst, difference)), removed + bool(num_removed)  # NaN stays
        ties += bool(num_ties) and not num_removed
    if not worst < TOLERANCE:
        raise DataError(f"logits of the trimmed run differ by {worst:.1e} of the largest, not less than {TOLERANCE}")
    before, after = (sum(x.nbytes for x in jax.tree.leaves(one.params)) for one in (whole, small))
    return Proof(tables, worst, kind.what, len(lines), ties, removed, (before, after), (slow, fast))


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


class Kind(NamedTuple):
    """A kind of predictor, as it is compared."""

    what: str
    logits: Callable[[Any, str, Sequence[int]], np.ndarray]
    """Returns the logits of each token of a greedy text, given its line and those before it; or of the choices at each
    place of a line."""
    texts: Callable[[Any, Sequence[str]], list[Sequence[int]]] | None = None
    """Returns the tokens of the greedy text of each line; None for a predictor that chooses at places."""
    has_classes: bool = False
    """True if the choices are not tokens."""

    __repr__ = brief

    def answers(self, predictor: Any, lines: Sequence[str]) -> list[Sequence[int]]:
        """Returns the tokens of the greedy text of each line, or the best choice at each of its places."""
        if self.texts is not None:
            return self.texts(predictor, lines)
        return [self.logits(predictor, line, ()).argmax(1).tolist() for line in lines]


def compare(
    kind: Kind, whole: Any, small: Any, tokens: np.ndarray, line: str, theirs: Sequence[int], ours: Sequence[int]
) -> tuple[float, int, int]:
    """Compares the answers of both predictors to a line, and the logits of the first tokens or of all choices.

    Returns the largest difference of logits, relative to the largest, and the numbers of ties and of removed tokens
    where the answers differ; of a text, only the first place counts.
    """
    numbers, eos = {token: number for number, token in enumerate(tokens.tolist())}, tokenizer_of(whole).special.eos
    text = [*itertools.takewhile(numbers.__contains__, theirs[:LENGTH])] or [eos]
    before, after = kind.logits(whole, line, text), kind.logits(small, line, [numbers.get(x, 0) for x in text])
    choices = np.arange(before.shape[1]) if kind.has_classes else tokens
    before, after = before[:, choices], after[:, : len(choices)]
    difference = float(np.abs(before - after).max() / max(1e-30, np.abs(before).max()))
    pairs = itertools.zip_longest(theirs, choices[[*ours]].tolist(), fillvalue=eos)
    differing = [(place, left, right) for place, (left, right) in enumerate(pairs) if left != right]
    if kind.texts is not None:
        differing = differing[:1]
    ties = [one for one in differing if one[1] in choices]
    for place, left, right in ties:
        logits = kind.logits(whole, line, [*theirs[:place], left])[place]
        _check_tie(line, float(logits[left] - logits[right]))
    return difference, len(ties), len(differing) - len(ties)


def _check_tie(line: str, gap: float) -> None:
    if not abs(gap) < TIE:
        raise DataError(f"the trimmed run chooses otherwise for {line[:80]!r}, by a logit of {gap:.1e}")


def _timed(results: Callable[[], T]) -> tuple[T, float]:
    """Returns results, and the time to compute them after their programs have been compiled."""
    results()
    begin = time.perf_counter()
    return results(), time.perf_counter() - begin


@functools.partial(jax.jit, static_argnums=0)
def _apply(net: Pure, params: Params, *inputs: Any) -> jax.Array:
    return net.apply(params, *inputs)


def _logits(predictor: Any, *inputs: Any) -> np.ndarray:
    return np.asarray(_apply(predictor.net, predictor.params, *inputs)[0], np.float32)


def _row(predictor: Any, ids: Sequence[int]) -> np.ndarray:
    """Returns a padded row ``[1, T]``, for few programs; padding on the right changes no earlier logit."""
    length = -(-len(ids) // LENGTH) * LENGTH
    length = max(len(ids), min(length, predictor.net.config.length_limit or length))
    return np.pad(np.asarray(ids, np.int32), (0, length - len(ids)))[None]


def _fed(predictor: Any, text: Sequence[int]) -> np.ndarray:
    """Returns the tokens that a decoder reads while it predicts a text."""
    return _row(predictor, [predictor.tokenizer.special.bos, *text[:-1]])


def _greedy(predictor: Any, **changes: object) -> Any:
    return dataclasses.replace(predictor, decode=dataclasses.replace(predictor.decode, search=Greedy(), **changes))


def _quiet(message: str) -> None: ...


def _translations(translator: Translator, lines: Sequence[str]) -> list[Sequence[int]]:
    return [best[0].tokens for best in _greedy(translator).candidates(lines, warn=_quiet)]


def _translation_logits(translator: Translator, line: str, text: Sequence[int]) -> np.ndarray:
    (source,) = translator._tokens([line], "source", 1, _quiet)
    return _logits(translator, translator._padded([source]), _fed(translator, text))[: len(text)]


def _noise(captioner: ImageCaptioner, line: str) -> np.ndarray:
    random = np.random.default_rng(zlib.crc32(line.encode()))
    return random.integers(0, 256, captioner.shape, np.uint8)


def _captions(captioner: ImageCaptioner, lines: Sequence[str]) -> list[Sequence[int]]:
    images = np.stack([_noise(captioner, line) for line in lines])
    return [best[0].tokens for best in _greedy(captioner).candidates(images)]


def _caption_logits(captioner: ImageCaptioner, line: str, text: Sequence[int]) -> np.ndarray:
    image = np.asarray(normalized(jnp.asarray(_noise(captioner, line)[None])))
    return _logits(captioner, image, _fed(captioner, text))[: len(text)]


def _continuations(generator: TextGenerator, lines: Sequence[str]) -> list[Sequence[int]]:
    most = min(LENGTH, max(1, generator.window // 2))
    return [best[0].tokens for best in _greedy(generator, max_tokens=most).continuations(lines, warn=_quiet)]


def _continuation_logits(generator: TextGenerator, line: str, text: Sequence[int]) -> np.ndarray:
    before = generator._context(encode_texts(generator.tokenizer, [line])[0].tolist())
    ids = [*before, *text[:-1]]
    return _logits(generator, _row(generator, ids))[len(ids) - len(text) : len(ids)]


def _guess_logits(masked: MaskedPredictor, line: str, text: Sequence[int]) -> np.ndarray:
    size = masked.tokenizer.vocab_size
    ids = masked._encode(line)[: masked.net.config.length_limit]
    places = [*range(1, len(ids) - 1, MASKED)] or [0]
    for place in places:
        ids[place] = size
    return _logits(masked, masked._tokens(ids), _row(masked, places))[: len(places), :size]


def _class_logits(classifier: TextClassifier, line: str, text: Sequence[int]) -> np.ndarray:
    if classifier.has_pairs:  # a line that is no pair is one with itself
        first, _, second = map(str.strip, line.strip().partition("\t"))
        line = "\t".join((first, second.replace("\t", " ") or first))
    ((_, (row, *_)),) = classifier._results([line], 1, _quiet)
    return _logits(classifier, jax.tree.map(lambda x: x[None], row))[None]


def _label_logits(tagger: Tagger, line: str, text: Sequence[int]) -> np.ndarray:
    tokenizer, words = tagger.vocabulary.tokenizer, split_words(line) or (line.strip(),)
    tokenized = tokenize_words([words], tokenizer, tagger.max_length - 2)
    ids = tokenized.parts.take(np.array([0]))
    length = row_length(int(ids.lengths[0]) + 2, tagger.max_length)
    return _logits(tagger, pad_texts(ids, (1, length), tokenizer.special))[tokenized.places(0)]


_KINDS: dict[type, Kind] = {
    Translator: Kind("greedy translations", _translation_logits, _translations),
    TextGenerator: Kind("greedy continuations", _continuation_logits, _continuations),
    ImageCaptioner: Kind("greedy captions", _caption_logits, _captions),
    MaskedPredictor: Kind("guesses at masked tokens", _guess_logits),
    TextClassifier: Kind("classes", _class_logits, has_classes=True),
    Tagger: Kind("labels of words", _label_logits, has_classes=True),
}
