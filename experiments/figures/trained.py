"""Figures 17.5, 17.7 and 17.9 of "Lecture 17: Attention": alignments and captions of small networks, trained here.

Both networks are as in the lecture, recurrent with additive attention, and learn where to look from sentences alone.
Their sentences are made from a few patterns, because the lecture's figures are of corpora that take days to learn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure

from jaxformer import models, pure, training
from jaxformer.data.batch import Batch
from jaxformer.inspection import attention_maps, plots
from jaxformer.tokenizers.special_tokens import SpecialTokens

SPECIAL = SpecialTokens()
ENGLISH = "The agreement on the European Economic Area was signed in August 1992 ."
FRENCH = "L' accord sur la zone économique européenne a été signé en août 1992 ."
"""The lecture's sentence; it counts L' as a word."""

SUBJECTS = {"agreement": "L' accord", "report": "Le rapport", "treaty": "Le traité", "budget": "Le budget"}
NOUNS = {
    **{"Area": "zone", "Union": "union", "Community": "communauté", "Policy": "politique"},
    **{"Bank": "banque", "Commission": "commission", "Assembly": "assemblée", "Convention": "convention"},
}
ADJECTIVES = {"European": "européenne", "Economic": "économique", "Common": "commune", "Social": "sociale"}
VERBS = {"signed": "signé", "published": "publié", "revised": "révisé", "approved": "approuvé"}
MONTHS = {"August": "août", "May": "mai", "June": "juin", "March": "mars"}

CAPTION = "a bird flying over a body of water ."
THINGS = {"bird": (0.10, 0.08, 0.08), "kite": (0.85, 0.15, 0.15), "balloon": (0.95, 0.80, 0.10)}
GROUNDS = {
    "a body of water": (0.10, 0.35, 0.60),
    "a green field": (0.25, 0.55, 0.20),
    "a sandy beach": (0.85, 0.75, 0.55),
}
SIZE = 32
"""Height and width of the captioned pictures, in pixels."""


class Words:
    """A vocabulary of whole words."""

    def __init__(self, sentences: Sequence[str]):
        names = sorted({word for sentence in sentences for word in sentence.split()})
        self.ids = {word: number for number, word in enumerate(names, 1 + max(SPECIAL.ids))}
        self.size = 1 + max(self.ids.values())

    def __call__(self, sentence: str) -> np.ndarray:
        return np.array([self.ids[word] for word in sentence.split()], np.int32)


def train(net: Any, loss: Callable[..., Any], batches: Callable[[], Any], steps: int, rate: float) -> Any:
    """Returns the parameters of a network after these steps of Adam."""
    optimizer = training.make_optimizer(training.AdamConfig(learning_rate=rate, warmup_steps=20), steps=steps)
    step = training.make_step(loss, optimizer)
    state = training.create(net.init, optimizer, jax.random.key(0))
    for _ in range(steps):
        state, _ = step(state, batches())
    return state.params


def pair(random: np.random.Generator) -> tuple[str, str]:
    """Returns a sentence like that of the lecture, of 9 to 13 words, and its translation, in which nouns come first."""
    pick = lambda table: list(table.items())[random.integers(len(table))]
    (subject, sujet), (noun, nom), (verb, verbe), (month, mois) = map(pick, (SUBJECTS, NOUNS, VERBS, MONTHS))
    count, year = random.integers(3), 1990 + random.integers(6)
    adjectives = [list(ADJECTIVES.items())[i] for i in random.permutation(len(ADJECTIVES))[:count]]
    english = f"The {subject} on the {' '.join([*(one for one, _ in adjectives), noun])}"
    french = f"{sujet} sur la {' '.join([nom, *(other for _, other in adjectives[::-1])])}"
    return f"{english} was {verb} in {month} {year} .", f"{french} a été {verbe} en {mois} {year} ."


def alignment(steps: int = 300, rows: int = 32) -> attention_maps.AttentionMap:
    """Trains a translator of sentences from `pair` and returns its attention for the lecture's: figure 17.5.

    The network is `models.Seq2Seq`: a bidirectional encoder, additive attention, and a decoder.
    """
    random = np.random.default_rng(0)
    words = Words([sentence for _ in range(2_000) for sentence in pair(random)] + [ENGLISH, FRENCH])
    config = models.Seq2SeqConfig(
        words.size, words.size, cell="gru", d_model=32, d_hidden=64, dropout=0.0, tie_embeddings="none"
    )
    net = pure(models.Seq2Seq, config)
    length = max(len(ENGLISH.split()), len(FRENCH.split())) + 1

    def batch(pairs: Sequence[tuple[str, str]]) -> Batch:
        sources, targets = zip(*pairs, strict=True)
        return Batch.from_tokens([*map(words, sources)], [*map(words, targets)], (len(pairs), length, length), SPECIAL)

    loss = lambda params, batch, key: net.bind(params).loss(batch.source, batch.target, labels=batch.labels)[:2]
    params = train(net, loss, lambda: batch([pair(random) for _ in range(rows)]), steps, 5e-3)
    one = jax.tree.map(jnp.asarray, batch([(ENGLISH, FRENCH)]))
    weights = net.bind(params).captured(one.source, one.target)["decoder.cross"].layer(0).weights()[0, 0]
    source, target = (*ENGLISH.split(), "<end>"), (*FRENCH.split(), "<end>")
    return attention_maps.AttentionMap(source, target, np.asarray(weights)[: len(target), : len(source)])


def draw_alignment(data: attention_maps.AttentionMap, more: plots.Shade = "brighter") -> Figure:
    """Draws figure 17.5; as in the lecture, more weight is brighter by default."""
    return plots.attention_map(data, title="attention of each French word over the English ones", more=more)


def scene(thing: str, ground: str, at: tuple[int, int] = (8, 14), seed: int = 0) -> np.ndarray:
    """Returns a picture, uint8 ``[32, 32, 3]``: a thing in the sky, its upper left corner at `at`, over a ground."""
    random = np.random.default_rng(seed)
    picture = np.full((SIZE, SIZE, 3), (0.75, 0.85, 0.95))
    picture[22:] = GROUNDS[ground]
    row, column = at
    picture[row : row + 4, column : column + 6] = THINGS[thing]
    noisy = picture + 0.02 * random.standard_normal(picture.shape)
    return (255 * noisy.clip(0, 1)).astype(np.uint8)


def captions(steps: int = 250, rows: int = 32) -> dict[str, Any]:
    """Trains a captioner of pictures from `scene`; returns one with its attention for each word: figures 17.7, 17.9.

    The network is `models.RecurrentCaptioner`: a CNN whose features form a grid, additive attention, and an LSTM.
    `centers` is the row and column of the mean position of each word, in cells.
    """
    random = np.random.default_rng(0)
    caption = lambda thing, ground: f"a {thing} flying over {ground} ."
    words = Words([caption(thing, ground) for thing in THINGS for ground in GROUNDS])
    image = models.GridConfig(image_size=(SIZE, SIZE), widths=(8, 16, 32), num_blocks=1)
    config = models.RecurrentCaptionerConfig(image=image, vocab_size=words.size, d_model=32, d_hidden=64, dropout=0.0)
    net = pure(models.RecurrentCaptioner, config)
    length = len(CAPTION.split()) + 1

    def batch(labels: Sequence[tuple[str, str]], pictures: Sequence[np.ndarray]) -> dict[str, Any]:
        tokens = [words(caption(*each)) for each in labels]
        texts = Batch.from_tokens(tokens, tokens, (len(labels), length, length), SPECIAL)
        return {"images": np.stack(pictures) / np.float32(255) - np.float32(0.5), "texts": texts}

    def batches() -> dict[str, Any]:
        pick = lambda table: list(table)[random.integers(len(table))]
        labels = [(pick(THINGS), pick(GROUNDS)) for _ in range(rows)]
        places = [(int(random.integers(2, 16)), int(random.integers(1, 25))) for _ in labels]
        seeds = random.integers(1 << 30, size=rows)
        return batch(labels, [scene(*each, at, seed) for each, at, seed in zip(labels, places, seeds, strict=True)])

    def loss(params: Any, batch: dict[str, Any], key: Any) -> Any:
        texts = batch["texts"]
        return net.bind(params).loss(batch["images"], texts.target, labels=texts.labels)[:2]

    params = train(net, loss, batches, steps, 3e-3)
    picture = scene("bird", "a body of water")
    one = jax.tree.map(jnp.asarray, batch([("bird", "a body of water")], [picture]))
    captured = net.bind(params).captured(one["images"], one["texts"].target)
    weights = np.asarray(captured["decoder.cross"].layer(0).weights())[0, 0, : length - 1]
    grid = image.grid_size
    rows_of, columns_of = np.indices(grid).reshape(2, -1)
    centers = np.stack([weights @ rows_of, weights @ columns_of], -1)
    return {"picture": picture, "words": tuple(CAPTION.split()), "weights": weights, "grid": grid, "centers": centers}


def draw_captions(data: dict[str, Any]) -> Figure:
    """Draws figure 17.7: the picture, and for each word where the captioner looks."""
    columns = tuple(str(i) for i in range(data["weights"].shape[1]))
    looks = attention_maps.AttentionMap(columns, data["words"], data["weights"])
    return plots.caption_sheet([data["picture"]], [looks], grid=data["grid"], titles=["the picture"])
