"""A trained text classifier: classes with their probabilities, and the words that the class token attends to."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence

import jax
import numpy as np

from jaxformer import models
from jaxformer.data.batch import few_rows
from jaxformer.data.examples import pad_texts, tokenize_examples, with_types
from jaxformer.digests import short_digest
from jaxformer.errors import DataError
from jaxformer.functional.tokens import Tokens
from jaxformer.inspection import attention_maps
from jaxformer.inspection.pages import View
from jaxformer.modules.pure import Params, Pure
from jaxformer.reprs import as_html, brief_with_methods
from jaxformer.tasks import views
from jaxformer.tasks.batched import batched, check_texts, in_order
from jaxformer.tokenizers.base import Tokenizer

ROWS = 32
"""The number of texts that are classified at once."""
LENGTH_STEP = 16
"""Batch lengths are multiples of this, so that few programs are compiled."""


@dataclasses.dataclass(frozen=True)
class ClassVocabulary:
    """The tokens of the texts and the names of the classes."""

    tokenizer: Tokenizer
    classes: tuple[str, ...]

    @property
    def vocab_size(self) -> tuple[int, int]:
        """The numbers of tokens and of classes."""
        return self.tokenizer.vocab_size, len(self.classes)

    @property
    def fingerprint(self) -> str:
        """A hash of both."""
        return short_digest([self.tokenizer.fingerprint, json.dumps(self.classes)])


@dataclasses.dataclass(frozen=True)
class Classified:
    """A text's class, the probability of each class, and the words that the class token attends to."""

    label: str
    probabilities: Mapping[str, float]
    words: tuple[tuple[str, float], ...]
    """Each word of the text with its attention weight, the mean of the last layer's heads; empty without attention."""


@dataclasses.dataclass(frozen=True)
class TextClassifier:
    """A classifier, its parameters, its tokenizer and its classes."""

    net: Pure[models.Classifier, models.ClassifierConfig]
    params: Params
    vocabulary: ClassVocabulary
    max_length: int
    steps: tuple[int, ...] = ()
    """The training steps whose parameters these are."""
    has_pairs: bool = False
    """True if each text is a pair of texts, with a tab between them."""

    __repr__ = brief_with_methods
    _repr_html_ = as_html

    def probabilities(
        self,
        texts: Sequence[str],
        *,
        warn: Callable[[str], None] = lambda message: None,
        progress: Callable[[int], None] = lambda number: None,
    ) -> np.ndarray:
        """Returns the probability of each class, ``[texts, classes]``; see `classify`.

        Args:
          progress: called with the number of texts since the last call.
        """
        result = np.zeros((len(texts), len(self.vocabulary.classes)))
        for index, (_, probabilities, _) in self._results(texts, 1, warn, progress):
            result[index] = probabilities
        return result

    def classify(
        self, texts: Sequence[str], *, first: int = 1, warn: Callable[[str], None] = lambda message: None
    ) -> list[Classified]:
        """Returns the class of each text, with probabilities and the words that the class token attends to.

        Args:
          texts: blanks around a text are left out, as in training.
          first: the number of the first text in messages.
          warn: called with a message for each text of more than `max_length` tokens; only its first ones are read.

        Raises:
          TypeError: `texts` is one text and not a sequence of texts.
          DataError: a text of a classifier of pairs is not a pair.
        """
        results, tokenizer = [], self.vocabulary.tokenizer
        for tokens, probabilities, weights in in_order(self._results(texts, first, warn)):
            named = dict(zip(self.vocabulary.classes, probabilities.tolist(), strict=True))
            words: tuple[tuple[str, float], ...] = ()
            if weights is not None:
                inner = np.flatnonzero(tokens.valid)[1:-1]
                if self.has_pairs:  # an end token stands between the two
                    inner = inner[tokens.ids[inner] != tokenizer.special.eos]
                words = _words(tokenizer.pieces(tokens.ids[inner].tolist()), weights[inner])
            results.append(Classified(max(named, key=lambda name: named[name]), named, words))
        return results

    def view(self, text: str) -> View:
        """Returns the self-attention of a text, and the probability of each class; a long text is truncated."""
        ((_, (row, probabilities, _)),) = self._results([text], 1, lambda message: None)
        pieces = tuple(self.vocabulary.tokenizer.pieces(row.ids[row.valid].tolist()))
        tokens = jax.tree.map(lambda x: x[None], row)
        found = views.self_attention(self.net, self.params, tokens, pieces=pieces)
        named = dict(zip(self.vocabulary.classes, probabilities.tolist(), strict=True))
        return View(text, found, views.by_probability(named))

    def _results(
        self,
        texts: Sequence[str],
        first: int,
        warn: Callable[[str], None],
        progress: Callable[[int], None] | None = None,
    ) -> Iterator[tuple[int, tuple[Tokens[np.ndarray], np.ndarray, np.ndarray | None]]]:
        """Yields the index of each text, its tokens, probabilities and weights of the class token."""
        check_texts(texts=texts)
        # As `read_examples` does:
        texts = ["\t".join(map(str.strip, text.split("\t"))) if self.has_pairs else text.strip() for text in texts]
        for number, text in enumerate(texts, first):
            if self.has_pairs and text.count("\t") != 1:
                parts = text.count("\t") + 1
                raise DataError(f"text {number} must be two texts with a tab between them, got {parts}")
        tokenizer, most, what = self.vocabulary.tokenizer, self.max_length - 2, "" if self.has_pairs else "the first "
        encoded, numbers = tokenize_examples(
            texts, tokenizer.encode, tokenizer.special, most=most, has_pairs=self.has_pairs
        )
        for number, size in enumerate(numbers.tolist(), first):
            if size > most:
                warn(f"text {number} has {size:,} tokens; only {what}{most:,} are read")
        lengths = np.minimum(numbers + 2, self.max_length).tolist()
        is_typed = self.has_pairs and self.net.config.num_token_types > 1

        def run(batch: list[int]):
            length = row_length(lengths[batch[-1]], self.max_length)
            rows = 1 if len(batch) == 1 else few_rows(len(batch), ROWS)
            tokens = pad_texts(encoded.take(np.array(batch)), (rows, length), tokenizer.special)
            if is_typed:
                tokens = with_types(tokens, tokenizer.special)
            return lambda: (tokens, *_classify(self.net, self.params, tokens))

        return batched(run, lengths, ROWS, usual=self.max_length, progress=progress)


def row_length(length: int, most: int) -> int:
    """Returns the length of a row for `length` tokens: the next multiple of `LENGTH_STEP`, at most `most`."""
    return min(most, -(-length // LENGTH_STEP) * LENGTH_STEP)


def _words(pieces: Sequence[str], weights: np.ndarray) -> tuple[tuple[str, float], ...]:
    """Returns the words of these pieces, with the weights of the pieces."""
    if not pieces:
        return ()
    merged = attention_maps.by_word(attention_maps.AttentionMap(tuple(pieces), ("class token",), weights[None]))
    return tuple(zip(merged.source, merged.weights[0].tolist(), strict=True))


@functools.partial(jax.jit, static_argnums=0)
def _classify(net: Pure, params: Params, tokens: Tokens[jax.Array]):
    """Returns probabilities ``[B, C]`` and the class token's weights ``[B, T]``, None without attention."""
    logits, intermediates = net.bind(params).run(tokens, capture=("encoder.self",))
    if not intermediates:
        return jax.nn.softmax(logits), None
    weights = intermediates["encoder.self"].layer(-1).weights(rows=[0])
    return jax.nn.softmax(logits), weights[:, :, 0].mean(1)
