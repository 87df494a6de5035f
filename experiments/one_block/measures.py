"""The abilities of a trained family: words between words, next words, sentences, translations."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.one_block.families import BOS, EOS, MASK, PAD, Family
from experiments.one_block.training import Corpus
from jaxformer.evaluation.scores import bleu


@functools.partial(jax.jit, static_argnums=(0, 1))
def logits_at(net: Any, family: Family, params: Any, words: Any, source: Any, place: Any) -> jax.Array:
    """Returns the logits of the word at `place` of each sentence, ``[B, V]``, from the words before it alone.

    A family that is trained on masked words gets `MASK` there, and nothing after it.
    """
    before = jnp.arange(words.shape[1])[None] < place[:, None]
    words = jnp.where(before, words, PAD)
    if family.goal == "masked word":
        words = words.at[jnp.arange(len(words)), place].set(MASK)
    found = net.apply(params, words, source if family.cross else None)
    place = place if family.goal == "masked word" else place - 1
    return found[jnp.arange(len(words)), place].at[:, jnp.array([PAD, BOS, MASK])].set(-jnp.inf)


def between(net: Any, params: Any, data: Corpus, *, seed: int = 0) -> float:
    """Returns an encoder's accuracy at one masked word of each held-out sentence, from the words on both sides."""
    words = data.english[: data.num_held_out]
    rows, place = np.arange(len(words)), _places(words, seed)
    told = words.copy()
    told[rows, place] = MASK
    found = np.asarray(jax.jit(net.apply)(params, told))[rows, place]
    return float((found.argmax(-1) == words[rows, place]).mean())


def following(net: Any, family: Family, params: Any, data: Corpus, *, seed: int = 0) -> float:
    """Returns the accuracy at the same words from the words before them alone."""
    words = data.english[: data.num_held_out]
    place = _places(words, seed)
    found = np.asarray(logits_at(net, family, params, words, words, place))
    return float((found.argmax(-1) == words[np.arange(len(words)), place]).mean())


def _places(words: np.ndarray, seed: int) -> np.ndarray:
    """Returns a position of each sentence that holds a word and is not its first."""
    lengths = (words > MASK).sum(1)
    return np.random.default_rng(seed).integers(2, lengths + 1).astype(np.int32)


def write(
    net: Any, family: Family, params: Any, source: np.ndarray, length: int, key: jax.Array | None = None
) -> np.ndarray:
    """Returns sentences ``[B, length]``, written word by word: the most probable words, or with a key drawn ones."""
    words = np.full((len(source), length), PAD, np.int32)
    words[:, 0] = BOS
    done = np.zeros(len(source), bool)
    for place in range(1, length):
        scores = logits_at(net, family, params, words, source, np.full(len(source), place, np.int32))
        if key is None:
            chosen = np.asarray(scores.argmax(-1))
        else:
            chosen = np.asarray(jax.random.categorical(jax.random.fold_in(key, place), scores))
        words[:, place] = np.where(done, PAD, chosen)
        done |= chosen == EOS
    return words


def known_trigrams(sentences: np.ndarray, corpus: np.ndarray) -> float:
    """Returns the share of three words in a row, ends included, that occur in a corpus."""
    known = set().union(*(_trigrams(row) for row in corpus))
    found = [trigram in known for row in sentences for trigram in _trigrams(row)]
    return float(np.mean(found)) if found else 0.0


def _trigrams(row: np.ndarray) -> list[tuple[int, ...]]:
    words = [int(word) for word in row if word != PAD]
    return [tuple(words[i : i + 3]) for i in range(len(words) - 2)]


def translation_score(translations: np.ndarray, data: Corpus) -> float:
    """Returns BLEU of translations of the held-out sentences."""
    texts = lambda rows: [data.text(row[1:].tolist()) for row in rows]
    return bleu(texts(translations), texts(data.french[: len(translations)])).value


def examples(sentences: np.ndarray, data: Corpus, number: int = 3) -> Sequence[str]:
    """Returns some sentences as text."""
    return [data.text(row[1:].tolist()) for row in sentences[:number]]


def sees(net: Any, family: Family, params: Any, length: int = 6) -> np.ndarray:
    """Returns the dependence of outputs on words, ``[length, length]``: row t is True where a word changes output t."""
    words = np.tile(np.arange(4, 4 + length, dtype=np.int32), (length + 1, 1))
    source = words.copy() if family.cross else None
    words[np.arange(length), np.arange(length)] = MASK  # one changed word each; the last sentence has none
    found = np.asarray(jax.jit(net.apply)(params, words, source))
    return (np.abs(found[:-1] - found[-1]).max(-1) > 1e-6).T
