"""A trained tagger: a label for each word of a text, with its probability, and the spans that the labels mark."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from jaxformer import models
from jaxformer.data.batch import few_rows
from jaxformer.data.examples import pad_texts
from jaxformer.data.tagged import split_words, tokenize_words
from jaxformer.errors import DataError
from jaxformer.evaluation.spans import is_span, spans
from jaxformer.functional.tokens import Tokens
from jaxformer.inspection.pages import View
from jaxformer.modules.pure import Params, Pure
from jaxformer.reprs import as_html, brief_with_methods
from jaxformer.tasks import views
from jaxformer.tasks.batched import batched, check_texts, in_order
from jaxformer.tasks.classification.predictor import ROWS, ClassVocabulary, row_length


@dataclasses.dataclass(frozen=True)
class Tagged:
    """The words of a text, the label of each, and its probability."""

    words: tuple[str, ...]
    labels: tuple[str, ...]
    probabilities: tuple[float, ...]

    @property
    def spans(self) -> list[tuple[str, int, int]]:
        """The kind, the start and the stop of each span of words that labels such as B-PER and I-PER mark."""
        return spans(self.labels) if any(map(is_span, self.labels)) else []


@dataclasses.dataclass(frozen=True)
class Tagger:
    """A token classifier, its parameters, its tokenizer and its labels."""

    net: Pure[models.TokenClassifier, models.TokenClassifierConfig]
    params: Params
    vocabulary: ClassVocabulary
    max_length: int
    steps: tuple[int, ...] = ()
    """The training steps whose parameters these are."""

    __repr__ = brief_with_methods
    _repr_html_ = as_html

    def tag(self, texts: Sequence[str | Sequence[str]]) -> list[Tagged]:
        """Returns the label of each word of each text.

        Args:
          texts: texts, which are split by `data.tagged.split_words`, or sequences of words. The parts of a text that is
            too long for a row are labeled separately.

        Raises:
          TypeError: `texts` is one text and not a sequence of texts.
        """
        check_texts(texts=texts)
        sentences = [split_words(text) if isinstance(text, str) else tuple(text) for text in texts]
        tokenizer, most = self.vocabulary.tokenizer, self.max_length - 2
        tokenized = tokenize_words(sentences, tokenizer, most)
        parts = tokenized.parts
        lengths = (parts.lengths + 2).tolist()

        def run(batch: list[int]):
            length = row_length(lengths[batch[-1]], self.max_length)
            rows = 1 if len(batch) == 1 else few_rows(len(batch), ROWS)
            tokens = pad_texts(parts.take(np.array(batch)), (rows, length), tokenizer.special)
            return lambda: _best(self.net, self.params, tokens)

        found: list[tuple[str, float]] = []
        results = in_order(batched(run, lengths, ROWS, usual=self.max_length))
        for part, (best, shares) in enumerate(results):
            places = tokenized.places(part)
            names = [self.vocabulary.classes[label] for label in best[places]]
            found += zip(names, shares[places].tolist(), strict=True)
        pairs = iter(found)
        tagged = [[(word, *next(pairs)) for word in sentence] for sentence in sentences]
        return [Tagged(*(zip(*each, strict=True) if each else ((), (), ()))) for each in tagged]

    def view(self, text: str) -> View:
        """Returns the self-attention of a text, and the label of each word; of a long text, that of its first part.

        Raises:
          DataError: the text has no words.
        """
        tokenizer, most, words = self.vocabulary.tokenizer, self.max_length - 2, split_words(text)
        if not words:
            raise DataError("the text has no words")
        ids = tokenize_words([words], tokenizer, most).parts.take(np.array([0]))
        length = int(ids.lengths[0]) + 2
        tokens = pad_texts(ids, (1, row_length(length, self.max_length)), tokenizer.special)
        pieces = tuple(tokenizer.pieces(tokens.ids[0, :length].tolist()))
        (tagged,) = self.tag([text])
        labels = " ".join(f"{word}/{label}" for word, label in zip(tagged.words, tagged.labels, strict=True))
        return View(text, views.self_attention(self.net, self.params, tokens, pieces=pieces), {"labels": labels})


@functools.partial(jax.jit, static_argnums=0)
def _best(net: Pure, params: Params, tokens: Tokens[jax.Array]):
    """Returns the most probable class of each token and its probability, ``[B, T]`` each."""
    probabilities = jax.nn.softmax(net.apply(params, tokens))
    return probabilities.argmax(-1).astype(jnp.int32), probabilities.max(-1)
