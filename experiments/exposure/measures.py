"""Teacher forcing against free running, the reach of a wrong word, and the scores of contrasts."""

from __future__ import annotations

import collections
import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.exposure.probes import Contrast
from jaxformer.demo import Pair
from jaxformer.functional import Tokens
from jaxformer.tasks.batched import padded
from jaxformer.tasks.translation import Translator

BATCH = 64
REACH = 6
"""Positions after a wrong word that are looked at."""
Say = Callable[[int], None]


@dataclasses.dataclass(frozen=True)
class Forced:
    """A model's view of given translations, one array for each: positions ``[T]``."""

    log_probs: list[np.ndarray]
    """The log-probabilities of the given tokens."""
    best: list[np.ndarray]
    """The most probable tokens."""
    rival: list[np.ndarray]
    """The most probable tokens that are not the given ones."""


def forced(
    translator: Translator,
    sources: Sequence[str],
    labels: Sequence[np.ndarray],
    inputs: Sequence[np.ndarray] | None = None,
    *,
    say: Say = lambda done: None,
) -> Forced:
    """Computes the distribution at every position of given translations, with the true tokens before it.

    Args:
      labels: the tokens of each translation.
      inputs: the tokens that the model is given instead of the labels, as long as these.
      say: called with the number of sentences done.
    """
    special = translator.tokenizer.special
    encoded = [np.append(ids, special.eos) for ids in translator.tokenizer.encode(list(sources))]
    told = labels if inputs is None else inputs
    order = sorted(range(len(labels)), key=lambda i: (len(labels[i]), len(encoded[i])))
    found: list[tuple[np.ndarray, ...]] = [()] * len(labels)
    for begin in range(0, len(order), BATCH):
        rows = order[begin : begin + BATCH]
        source = _padded([encoded[i] for i in rows], special.pad)
        target = _padded([np.append(special.bos, told[i][:-1]) for i in rows], special.pad).ids
        wanted = _padded([labels[i] for i in rows], special.pad).ids
        values = _views(translator.net, (special.pad, special.bos), translator.params, source, target, wanted)
        for row, i in enumerate(rows):
            found[i] = tuple(np.asarray(x)[row, : len(labels[i])] for x in values)
        say(len(rows))
    return Forced(*(list(column) for column in zip(*found, strict=True)))


def _padded(sequences: Sequence[np.ndarray], pad: int) -> Tokens[np.ndarray]:
    """Returns ``[BATCH, T]`` with T a multiple of 16, so that few programs are compiled."""
    longest = max(map(len, sequences))
    return padded(sequences, (BATCH, longest + -longest % 16), pad)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _views(net: Any, forbidden: tuple[int, ...], params: Any, source: Tokens, target: Any, labels: Any):
    """Returns the labels' log-probabilities, the most probable tokens, and the most probable other ones."""
    log_probs = jax.nn.log_softmax(net.apply(params, source, target))
    gained = jnp.take_along_axis(log_probs, labels[..., None], axis=-1)[..., 0]
    scores = log_probs.at[..., jnp.array(forbidden)].set(-jnp.inf)  # a search never chooses these
    others = jnp.where(jax.nn.one_hot(labels, scores.shape[-1], dtype=bool), -jnp.inf, scores)
    return gained, scores.argmax(-1), others.argmax(-1)


def gold_tokens(translator: Translator, texts: Sequence[str]) -> list[np.ndarray]:
    """Returns the tokens of complete translations, with the end token."""
    return [np.append(ids, translator.tokenizer.special.eos) for ids in translator.tokenizer.encode(list(texts))]


def exposure(translator: Translator, pairs: Sequence[Pair], say: Say = lambda done: None) -> dict[str, Any]:
    """Measures the accuracy of tokens by position, given the true beginning (teacher) or its own (free).

    Returns lists over positions 0, 1, ...: `count` sentences that are as long, the shares of right tokens `teacher` and
    `free`, and the share `whole` of sentences without an error so far. The accuracies `after` a first error of the free
    translation are those of the positions where the two can differ; None without such positions.
    """
    greedy = dataclasses.replace(translator, decode=translator.decode.greedy)
    sources, gold = [pair.english for pair in pairs], gold_tokens(translator, [pair.french for pair in pairs])
    eos = translator.tokenizer.special.eos
    free = [np.array([*best[0].tokens, eos]) for best in greedy.candidates(sources, progress=say)]
    views = forced(translator, sources, gold, say=say)
    length = max(map(len, gold))
    names = ("count", "teacher", "free", "whole", "late", "late_teacher", "late_free")
    sums = {name: np.zeros(length) for name in names}
    for label, best, own in zip(gold, views.best, free, strict=True):
        size, teacher = len(label), best == label
        said = np.full(size, -1)
        said[: len(own)] = own[:size]
        right = said == label
        late = np.cumsum(~right) - ~right > 0  # after a first error
        values = (np.ones(size), teacher, right, np.cumsum(~right) == 0, late, late & teacher, late & right)
        for name, value in zip(names, values, strict=True):
            sums[name][:size] += value
    count, late = sums["count"], sums["late"].sum()
    return {
        "sentences": len(pairs),
        "count": count.astype(int).tolist(),
        **{name: (sums[name] / count).tolist() for name in ("teacher", "free", "whole")},
        "after": {name: sums[f"late_{name}"].sum() / late if late else None for name in ("teacher", "free")}
        | {"tokens": int(late)},
        "all": {name: sums[name].sum() / count.sum() for name in ("teacher", "free")} | {"tokens": int(count.sum())},
        "without error": {
            "teacher": float(np.mean([np.array_equal(a, b) for a, b in zip(views.best, gold, strict=True)])),
            "free": float(np.mean([np.array_equal(a, b) for a, b in zip(free, gold, strict=True)])),
        },
    }


def reach(
    translator: Translator, pairs: Sequence[Pair], *, seed: int = 0, say: Say = lambda done: None
) -> dict[str, Any]:
    """Measures the reach of one wrong token: accuracy 1, 2, ... positions after it, with true tokens everywhere else.

    The wrong token is the model's own most probable one, or any of the vocabulary; `clean` is the accuracy without it.
    """
    rng = np.random.default_rng(seed)
    gold = gold_tokens(translator, [pair.french for pair in pairs])
    chosen = [i for i, ids in enumerate(gold) if len(ids) > REACH + 1]
    labels, sources = [gold[i] for i in chosen], [pairs[i].english for i in chosen]
    views = forced(translator, sources, labels, say=say)
    places = [int(rng.integers(0, len(ids) - REACH)) for ids in labels]
    drawn = rng.integers(max(translator.tokenizer.special.ids) + 1, translator.tokenizer.vocab_size, len(labels))
    after = lambda best: np.mean(
        [
            b[p + 1 : p + 1 + REACH] == ids[p + 1 : p + 1 + REACH]
            for b, p, ids in zip(best, places, labels, strict=True)
        ],
        0,
    ).tolist()
    found: dict[str, Any] = {"sentences": len(chosen), "clean": after(views.best)}
    wrong = {"own": [int(rival[p]) for rival, p in zip(views.rival, places, strict=True)], "random": drawn.tolist()}
    for name, tokens in wrong.items():
        told = [_replaced(ids, p, token) for ids, p, token in zip(labels, places, tokens, strict=True)]
        found[name] = after(forced(translator, sources, labels, told, say=say).best)
    return found


def _replaced(ids: np.ndarray, place: int, token: int) -> np.ndarray:
    told = ids.copy()
    told[place] = token
    return told


def margins(translator: Translator, contrasts: Sequence[Contrast], say: Say = lambda done: None) -> list[float]:
    """Returns the log-probability of each right beginning minus that of the most probable wrong one."""
    sources = [one.english for one in contrasts for _ in (one.right, *one.wrong)]
    texts = [text for one in contrasts for text in (one.right, *one.wrong)]
    complete = [text.endswith((".", "?")) for text in texts]
    gold = gold_tokens(translator, texts)
    labels = [ids if whole else ids[:-1] for ids, whole in zip(gold, complete, strict=True)]
    scores = iter([float(x.sum()) for x in forced(translator, sources, labels, say=say).log_probs])
    return [next(scores) - max(itertools.islice(scores, len(one.wrong))) for one in contrasts]


def shares(keys: Sequence[Any], margins: Sequence[float]) -> Iterator[tuple[Any, dict[str, float]]]:
    """Yields each key with its count, mean margin and share of positive margins, and Wilson's 95 % interval of it."""
    groups: dict[Any, list[float]] = collections.defaultdict(list)
    for key, value in zip(keys, margins, strict=True):
        groups[key].append(value)
    for key in sorted(groups):
        n, z = len(groups[key]), 1.96
        p = sum(margin > 0 for margin in groups[key]) / n
        center, half = p + z**2 / (2 * n), z * math.sqrt(p * (1 - p) / n + z**2 / (4 * n**2))
        low, high = (center - half) / (1 + z**2 / n), (center + half) / (1 + z**2 / n)
        interval = {"low": min(low, p), "high": max(high, p)}  # rounding must not leave the share outside
        yield key, {"count": n, "right": p, **interval, "margin": sum(groups[key]) / n}


def majority(contrasts: Sequence[Contrast]) -> float:
    """Returns the share of the most frequent answer."""
    return collections.Counter(one.answer for one in contrasts).most_common(1)[0][1] / len(contrasts)
