"""Attention maps between words, from attention between subword pieces."""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Sequence
from typing import Protocol

import numpy as np

SPACE = "\u2581"
"""How a tokenizer writes the space before a piece."""
BYTE = re.compile("<0x[0-9A-F]{2}>")
"""How it writes a byte of a character that is not in its vocabulary."""


class PieceMap(Protocol):
    """Weights ``[L, N, T, S]`` between the pieces of a source and a target."""

    source: tuple[str, ...]
    target: tuple[str, ...]
    weights: np.ndarray


@dataclasses.dataclass(frozen=True)
class Map:
    """Weights ``[T, S]``: row t is how target t spread its attention over the source; rows sum to 1."""

    source: tuple[str, ...]
    target: tuple[str, ...]
    weights: np.ndarray


def select(found: PieceMap, *, layer: int | None = None, head: int | None = None) -> Map:
    """One layer and head, or the mean over those not named.

    Raises:
      ValueError: no such layer or head.
    """
    weights = np.asarray(found.weights, np.float64)
    for name, index, size in (("layer", layer, weights.shape[0]), ("head", head, weights.shape[1])):
        if index is not None and not 0 <= index < size:
            raise ValueError(f"{name} {index} is not one of 0 to {size - 1}")
    weights = weights.mean(0) if layer is None else weights[layer]
    return Map(found.source, found.target, weights.mean(0) if head is None else weights[head])


def most_aligned(found: PieceMap) -> tuple[int, int]:
    """The layer and head that come closest to an alignment: whose weights reach the most source pieces.

    Most heads look elsewhere, at neighbors or at the end of the sentence, and a mean over all blurs the one that
    looks at what is being translated.  Reach is the sum, over source pieces but the last (the end of the sentence),
    of the largest weight that any target piece gives it.
    """
    reach = np.asarray(found.weights)[..., :-1].max(-2).sum(-1)
    layer, head = np.unravel_index(reach.argmax(), reach.shape)
    return int(layer), int(head)


def by_word(pieces: Map) -> Map:
    """Pieces merged to words: a word's attention is the mean over its pieces, what it receives is their sum."""
    source, target = _words(pieces.source), _words(pieces.target)
    columns = np.stack([pieces.weights[:, group].sum(1) for _, group in source], 1)
    rows = np.stack([columns[group].mean(0) for _, group in target])
    return Map(tuple(word for word, _ in source), tuple(word for word, _ in target), rows)


def entropy(weights: np.ndarray) -> np.ndarray:
    """How spread out each row is, in nats: 0 on one place, log S when uniform."""
    safe = np.where(weights > 0, weights, 1.0)
    return -(safe * np.log(safe)).sum(-1)


def as_text(found: Map, *, shades: str = " .:-=+*#%@") -> str:
    """The map in characters, darker for more; the source's words are numbered below."""
    width = max(len(word) for word in found.target)
    scale = len(shades) - 1
    lines = [f"{word:>{width}} " + "".join(shades[round(w * scale)] * 3 for w in row) for word, row in _rows(found)]
    lines.append(" " * (width + 1) + "".join(f"{i:^3}" for i in range(1, len(found.source) + 1)))
    return "\n".join([*lines, "  ".join(f"{i} {word}" for i, word in enumerate(found.source, 1))])


def _rows(found: Map):
    return zip(found.target, np.clip(found.weights, 0, 1), strict=True)


def _words(pieces: Sequence[str]) -> list[tuple[str, list[int]]]:
    """Words and the pieces they consist of; punctuation and special tokens stand alone."""
    words: list[tuple[str, list[int]]] = []
    for piece, places in _characters(pieces):
        text = piece.replace(SPACE, " ").strip()
        special = piece.startswith("<") and piece.endswith(">") and len(piece) > 2
        mark = bool(text) and not any(c.isalnum() for c in text) and text not in "'\u2019"
        if not words or piece.startswith(SPACE) or special or mark:
            words.append((text, places))
        else:
            word, group = words[-1]
            words[-1] = (word + text, group + places)
    return words


def _characters(pieces: Sequence[str]) -> list[tuple[str, list[int]]]:
    """Pieces and their places, those that are bytes joined to the text that they spell together."""
    found: list[tuple[str, list[int]]] = []
    for is_byte, run in itertools.groupby(enumerate(pieces), lambda at: bool(BYTE.fullmatch(at[1]))):
        places, texts = zip(*run, strict=True)
        if is_byte:
            spelled = bytes(int(text[3:5], 16) for text in texts).decode(errors="replace")
            found.append((spelled, list(places)))
        else:
            found += [(text, [place]) for place, text in zip(places, texts, strict=True)]
    return found
