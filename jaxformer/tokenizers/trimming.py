"""Smaller vocabularies: the tokens that a corpus needs, and a tokenizer that has these alone."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from jaxformer.errors import ConfigError, DataError
from jaxformer.files import JsonObject
from jaxformer.reprs import brief
from jaxformer.tokenizers.base import Tokenizer
from jaxformer.tokenizers.segmentation import SPACE

_BYTE = re.compile("<0x[0-9A-F]{2}>")
_WORD_BEGINS = (SPACE, "\u0120")  # the space of sentencepiece, and of pieces that are bytes


class Trimmed(NamedTuple):
    """A tokenizer with some of the tokens of another one."""

    tokenizer: Tokenizer
    tokens: np.ndarray
    """The id ``[V]`` that each of its tokens has in the other one, in increasing order."""

    __repr__ = brief


def trim(tokenizer: Tokenizer, texts: Sequence[str], *, multiple: int = 1, more: Iterable[int] = ()) -> Trimmed:
    """Returns a tokenizer that splits texts like another one and has only the tokens that they need.

    It keeps the tokens of the texts, as sources and as targets; every piece that occurs within a word of them, so that
    each segmentation and each merge stays; and special tokens, languages, and bytes. Without bytes, it keeps all single
    characters. The most and the least probable piece stay, on which the score of unknown characters depends.

    Args:
      multiple: the number of removed tokens is a multiple of it, for tables that are padded to such a multiple; so a
        few more stay.
      more: the ids of other tokens that stay.

    Raises:
      ConfigError: this kind of tokenizer cannot lose tokens.
      DataError: the smaller tokenizer splits a text in another way.
    """
    split = [tokenizer.encode(texts, side) for side in ("source", "target")]
    kept = _needed(tokenizer, [ids for side in split for ids in side]) | {*more}
    others = (token for token in range(tokenizer.vocab_size) if token not in kept)
    for _ in range((tokenizer.vocab_size - len(kept)) % multiple):
        kept.add(next(others))
    tokens = np.asarray(sorted(kept), np.int32)
    small = tokenizer.with_tokens(tokens.tolist())
    if small.vocab_size != len(tokens) or small.pieces(range(len(tokens))) != tokenizer.pieces(tokens.tolist()):
        raise DataError("the tokens of the trimmed tokenizer have other names")
    for side, before in zip(("source", "target"), split, strict=True):
        for text, old, new in zip(texts, before, small.encode(texts, side), strict=True):
            if not np.array_equal(tokens[new], old):
                raise DataError(f"the trimmed tokenizer splits {text[:80]!r} in another way")
    return Trimmed(small, tokens)


def _needed(tokenizer: Tokenizer, texts: Iterable[np.ndarray]) -> set[int]:
    names, inside = tokenizer.names, tokenizer.inside
    kept = {token for token in range(tokenizer.vocab_size) if tokenizer.is_special(token)}
    kept |= {*tokenizer.special.ids, *tokenizer.start, *tokenizer.tags.values()}
    scores = tokenizer.scores
    if scores:
        kept |= {min(scores, key=lambda token: scores[token]), max(scores, key=lambda token: scores[token])}
    spelled = {token for token, name in enumerate(names) if _BYTE.fullmatch(name)}
    kept |= spelled or {token for token, name in enumerate(names) if len(name.removeprefix(inside)) == 1}
    seen: set[tuple[str, ...]] = set()
    ids = {name: token for token, name in enumerate(names) if name}
    longest = max(map(len, names), default=1)
    for tokens in texts:
        kept.update(tokens.tolist())
        for word in _words([names[token] for token in tokens.tolist()], inside):
            if word not in seen:
                seen.add(word)
                kept |= _within("".join(word), ids, inside, longest)
    return kept


def _words(names: Iterable[str], inside: str) -> Iterable[tuple[str, ...]]:
    """Yields the pieces of each word, without the mark of those that continue one."""
    word: list[str] = []
    for name in names:
        begins = not name.startswith(inside) if inside else name.startswith(_WORD_BEGINS)
        if begins or _BYTE.fullmatch(name):
            yield tuple(word)
            word = []
        if not _BYTE.fullmatch(name):
            word.append(name.removeprefix(inside))
    yield tuple(word)


def _within(word: str, ids: dict[str, int], inside: str, longest: int) -> set[int]:
    """Returns the tokens of the pieces that occur within a word."""
    found = set[int]()
    for start in range(len(word)):
        for stop in range(start + 1, min(len(word), start + longest) + 1):
            name = (inside if start else "") + word[start:stop]
            if name in ids:
                found.add(ids[name])
    return found


def with_ids(rules: JsonObject, numbers: Mapping[int, int]) -> JsonObject:
    """Returns the content of a ``tokenizer.json`` with the tokens in `numbers`, which get new ids.

    A merge of BPE stays if both parts and the result do.
    """
    added = [
        token | {"id": numbers[token["id"]]} for token in rules.get("added_tokens") or () if token["id"] in numbers
    ]
    cut = {**rules, "added_tokens": added, "model": _model(rules["model"], numbers)}
    if rules.get("post_processor"):
        cut["post_processor"] = _template(rules["post_processor"], numbers)
    return cut


def _model(model: JsonObject, numbers: Mapping[int, int]) -> JsonObject:
    vocabulary = model.get("vocab")
    if isinstance(vocabulary, list):
        kept = [entry for token, entry in enumerate(vocabulary) if token in numbers]
        unknown = model.get("unk_id")
        return {**model, "vocab": kept, "unk_id": None if unknown is None else numbers[unknown]}
    if not isinstance(vocabulary, dict):
        raise ConfigError(f"a tokenizer.json of kind {model.get('type')} cannot be trimmed")
    known = {piece: numbers[token] for piece, token in vocabulary.items() if token in numbers}
    cut: JsonObject = {**model, "vocab": known}
    if "merges" in model:
        inside = model.get("continuing_subword_prefix") or ""
        pairs = ((merge, merge.split(" ") if isinstance(merge, str) else merge) for merge in model["merges"])
        cut["merges"] = [x for x, (a, b) in pairs if {a, b, a + b.removeprefix(inside)} <= known.keys()]
    return cut


def _template(rule: JsonObject, numbers: Mapping[int, int]) -> JsonObject:
    """Returns the rule for the tokens around a text."""
    rule = dict(rule)
    if "processors" in rule:
        rule["processors"] = [_template(part, numbers) for part in rule["processors"]]
    for name in ("sep", "cls"):
        if name in rule:
            piece, token = rule[name]
            rule[name] = [piece, numbers[token]]
    if isinstance(special := rule.get("special_tokens"), dict):
        rule["special_tokens"] = {
            name: {**about, "ids": [numbers[token] for token in about["ids"]]} for name, about in special.items()
        }
    return rule
