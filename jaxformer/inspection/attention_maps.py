"""Attention maps between words, from attention between subword pieces, and the rollout of a stack."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import re
import unicodedata
from collections.abc import Sequence

import numpy as np

from jaxformer.errors import ConfigError
from jaxformer.reprs import as_grid, brief
from jaxformer.tokenizers.segmentation import SPACE

BYTE = re.compile("<0x[0-9A-F]{2}>")
"""The form of a byte token, which spells part of a character outside the vocabulary."""


Predictions = tuple[tuple[tuple[str, float], ...], ...]
"""The most probable pieces of each position, best first, with their probabilities."""


OF_BERT = ("[CLS]", "[MASK]", "[SEP]", "[UNK]")
"""Special tokens of another form than ``</s>``."""


@dataclasses.dataclass(frozen=True)
class Patches:
    """An image, and the grid of its positions, row by row, that a network attends to."""

    image: np.ndarray
    """The pixels, uint8 ``[h, w, C]``."""
    grid: tuple[int, int]
    """The rows and columns."""

    __repr__ = brief


@dataclasses.dataclass(frozen=True)
class AttentionWeights:
    """Attention weights ``[L, N, T, S]`` between the pieces of a source and a target."""

    source: tuple[str, ...]
    target: tuple[str, ...]
    weights: np.ndarray
    patches: Patches | None = None
    """The image whose positions are the last pieces of the source."""
    predictions: Predictions = ()
    """The most probable pieces at each position of the target, if the network predicts there."""

    __repr__ = brief

    def _repr_html_(self) -> str:
        layers, heads = self.weights.shape[:2]
        mean = np.asarray(self.weights).mean((0, 1))
        return as_grid(mean, self.target, self.source, caption=f"the mean of {heads} heads in {layers} layers")


@dataclasses.dataclass(frozen=True)
class AttentionMap:
    """Weights ``[T, S]``: row t is the attention of target t over the source; rows sum to 1."""

    source: tuple[str, ...]
    target: tuple[str, ...]
    weights: np.ndarray

    __repr__ = brief

    def _repr_html_(self) -> str:
        return as_grid(self.weights, self.target, self.source, caption="attention of each row over the columns")


def select(attention: AttentionWeights, *, layer: int | None = None, head: int | None = None) -> AttentionMap:
    """Selects a layer and a head, or takes the mean over layers or heads if none is given; -1 is the last one."""
    weights = np.asarray(attention.weights, np.float64)
    chosen = ("layer", layer, weights.shape[0]), ("head", head, weights.shape[1])
    for index in [index if index is None else checked(name, index, size) for name, index, size in chosen]:
        weights = weights.mean(0) if index is None else weights[index]
    return AttentionMap(attention.source, attention.target, weights)


def checked(name: str, index: int, size: int) -> int:
    """Returns the index of a layer or head, counted from 0; -1 is the last one.

    Raises:
      ConfigError: there is no such layer or head.
    """
    if not -size <= index < size:
        raise ConfigError(f"{name} must be from 0 to {size - 1}, or from -1 to {-size} from the end, got {index}")
    return index % size


def most_aligned(attention: AttentionWeights) -> tuple[int, int]:
    """Returns the layer and head that come closest to an alignment: their attention covers the most source pieces.

    Most heads attend to neighbors or to the end of the sentence, and a mean over all heads blurs the head that attends
    to the words being translated. Coverage is the sum, over all source pieces except the last one (the end of the
    sentence), of the largest weight that any target piece gives them.
    """
    reach = np.asarray(attention.weights)[..., :-1].max(-2).sum(-1)
    layer, head = np.unravel_index(reach.argmax(), reach.shape)
    return int(layer), int(head)


def by_word(attention: AttentionMap) -> AttentionMap:
    """Merges pieces to words: a target word has the mean of its pieces' weights, a source word the sum."""
    source, target = words(attention.source), words(attention.target)
    received = np.stack([attention.weights[:, indices].sum(1) for _, indices in source], 1)
    weights = np.stack([received[indices].mean(0) for _, indices in target])
    return AttentionMap(tuple(word for word, _ in source), tuple(word for word, _ in target), weights)


def between_words(attention: AttentionWeights, source: Sequence[str], target: Sequence[str]) -> AttentionWeights:
    """Merges pieces to the words of the two texts; the end of each text stays a separate word.

    A target word has the mean of its pieces' weights, a source word the sum. A piece that covers several words is
    divided among them in proportion to its characters in each.

    Args:
      attention: the attention between texts that end with one special token each.
      source, target: the words of each text; joined, they are the text without its spaces.

    Raises:
      ValueError: the words and the pieces spell different texts.
    """
    received, sent = (_shares(*both) for both in ((attention.source, source), (attention.target, target)))
    sent /= sent.sum(1, keepdims=True)
    weights = sent @ np.asarray(attention.weights, np.float64) @ received.T
    return AttentionWeights((*source, attention.source[-1]), (*target, attention.target[-1]), weights)


def _shares(pieces: Sequence[str], words: Sequence[str]) -> np.ndarray:
    """Returns the share ``[words + 1, pieces]`` of each piece that lies in each word, the last being the end."""
    owners = np.repeat(np.arange(len(words) + 1), [*map(len, words), 1])
    shares = np.zeros((len(words) + 1, len(pieces)))
    shares[-1, -1] = 1
    position, spelled = 0, ""
    for text, indices in _characters(pieces[:-1]):
        letters = "".join(text.replace(SPACE, " ").split())
        # A piece that is only a space belongs to the next word, and one after the last word to the end token.
        mine = owners[position : position + max(1, len(letters))]
        for index in indices:
            np.add.at(shares[:, index], mine, 1 / max(1, len(mine)))
        position += len(letters)
        spelled += letters
    if spelled != "".join(words):
        raise ValueError(f"the words spell {''.join(words)!r}, but the pieces {spelled!r}")
    return shares


def entropy(weights: np.ndarray) -> np.ndarray:
    """Computes the entropy of each row in nats: 0 when all weight is on one key, log S when uniform."""
    safe = np.where(weights > 0, weights, 1.0)
    return 0.0 - (safe * np.log(safe)).sum(-1)  # 0, not -0, where all weight is on one key


def rollout(weights: np.ndarray) -> np.ndarray:
    r"""Computes the attention rollout ``[T, T]`` of the weights ``[L, N, T, T]`` of a stack (Abnar and Zuidema 2020).

    .. math:: \prod_{l=L}^{1} (\bar A_l + I) / 2

    :math:`\bar A_l` is the mean of the heads of layer l, and I stands for the residual path. Row t is the share of each
    input token in the state of token t, considering attention only; rows sum to 1.

    >>> rollout(np.array([[[[0.0, 1.0], [0.0, 1.0]]]])).tolist()
    [[0.5, 0.5], [0.0, 1.0]]
    """
    size = weights.shape[-1]
    mixed = (np.asarray(weights, np.float64).mean(1) + np.eye(size)) / 2
    return functools.reduce(lambda earlier, layer: layer @ earlier, mixed, np.eye(size))


def places(patches: Patches) -> tuple[str, ...]:
    """Returns the names of the positions of a grid, such as ``0,3``, each a word of its own."""
    rows, columns = patches.grid
    return tuple(f"{SPACE}{row},{column}" for row in range(rows) for column in range(columns))


SHADES = " .:-=+*#%@"
"""The characters of `as_text`, from weight 0 to weight 1."""


def as_text(attention: AttentionMap) -> str:
    """Writes the map as text, with darker characters for larger weights; the source words are numbered below.

    A weight of NaN, as of a training that has diverged, is a question mark.
    """
    longest = max(map(display_width, attention.target))
    darkest = len(SHADES) - 1
    shade = lambda weight: "?" if np.isnan(weight) else SHADES[round(weight * darkest)]
    lines = [
        f"{_right(word, longest)} " + "".join(shade(weight) * 3 for weight in weights)
        for word, weights in zip(attention.target, np.clip(attention.weights, 0, 1), strict=True)
    ]
    lines.append(" " * (longest + 1) + "".join(f"{i:^3}" for i in range(1, len(attention.source) + 1)))
    return "\n".join([*lines, "  ".join(f"{i} {word}" for i, word in enumerate(attention.source, 1))])


def as_table(attention: AttentionMap, *, decimals: int = 3) -> str:
    """Writes the weights as a table under the source words, with the sum and the entropy, in nats, of each row.

    >>> print(as_table(AttentionMap(("the", "cat"), ("le", "chat"), np.array([[0.9, 0.1], [0.25, 0.75]]))))
            the    cat |    sum  entropy
      le  0.900  0.100 |  1.000    0.325
    chat  0.250  0.750 |  1.000    0.562
    """
    weights = np.asarray(attention.weights, np.float64)
    names, summaries = ("sum", "entropy"), np.stack([weights.sum(-1), entropy(weights)], -1)
    widths = [max(display_width(word), decimals + 2) for word in (*attention.source, *names)]
    longest, columns = max(map(display_width, attention.target)), len(attention.source)

    def line(label: str, cells: Sequence[str]) -> str:
        padded = [f"  {_right(cell, width)}" for cell, width in zip(cells, widths, strict=True)]
        return _right(label, longest) + "".join([*padded[:columns], " |", *padded[columns:]])

    rows = np.concatenate([weights, summaries], -1)
    lines = [line(word, [f"{x:.{decimals}f}" for x in row]) for word, row in zip(attention.target, rows, strict=True)]
    return "\n".join([line("", [*attention.source, *names]), *lines])


def as_list(attention: AttentionMap, *, number: int = 3) -> str:
    """Writes the strongest weights of each target, for a source that is too long for a table.

    >>> print(as_list(AttentionMap(("the", "cat"), ("le", "chat"), np.array([[0.9, 0.1], [0.25, 0.75]])), number=1))
      le  the 0.900
    chat  cat 0.750
    """
    longest = max(map(display_width, attention.target))
    best = np.argsort(-attention.weights, axis=1, kind="stable")[:, :number]
    return "\n".join(
        "  ".join([_right(word, longest), *(f"{attention.source[i]} {row[i]:.3f}" for i in chosen)])
        for word, row, chosen in zip(attention.target, attention.weights, best, strict=True)
    )


def display_width(text: str) -> int:
    """Returns the columns that a text fills in a terminal: 2 for a wide letter of East Asia, 0 for a combining mark.

    >>> display_width("cat"), display_width("猫"), display_width("e\N{COMBINING ACUTE ACCENT}")
    (3, 2, 1)
    """
    marks = sum(unicodedata.category(letter) in ("Mn", "Me", "Cf") for letter in text)
    return len(text) - marks + sum(unicodedata.east_asian_width(letter) in "WF" for letter in text)


def _right(text: str, width: int) -> str:
    return " " * (width - display_width(text)) + text


def words(pieces: Sequence[str]) -> list[tuple[str, list[int]]]:
    """Returns words and the indices of their pieces; punctuation and special tokens stand alone.

    A space that is a separate piece belongs to the word that follows it, even if that is punctuation.
    """
    found: list[tuple[str, list[int]]] = []
    ended = True
    for piece, indices in _characters(pieces):
        text = piece.replace(SPACE, " ").strip()
        special = (piece.startswith("<") and piece.endswith(">") and len(piece) > 2) or piece in OF_BERT
        # Punctuation and symbols. For vowel signs, such as those of Hindi, isalnum is False, but they end no word.
        mark = bool(text) and all(unicodedata.category(c)[0] in "PS" for c in text) and text not in "'\u2019"
        alone = special or mark
        opened = bool(found) and not found[-1][0] and not special
        if not opened and (ended or alone or piece.startswith(SPACE)):
            found.append((text, indices))
        else:
            word, earlier = found[-1]
            found[-1] = (word + text, earlier + indices)
        ended = alone
    return found


def _characters(pieces: Sequence[str]) -> list[tuple[str, list[int]]]:
    """Returns pieces and their indices; consecutive bytes are joined to the text that they spell."""
    characters: list[tuple[str, list[int]]] = []
    for is_byte, run in itertools.groupby(enumerate(pieces), lambda item: bool(BYTE.fullmatch(item[1]))):
        indices, texts = zip(*run, strict=True)
        if is_byte:
            spelled = bytes(int(text[3:5], 16) for text in texts).decode(errors="replace")
            characters.append((spelled, list(indices)))
        else:
            characters += [(text, [index]) for index, text in zip(indices, texts, strict=True)]
    return characters
