"""Export of vocabularies trained by this library as ``tokenizer.json``, the file of Hugging Face's package tokenizers.

The tokens of a text are the same, with two exceptions. Where a text contains the name of a special token or byte, such
as ``</s>`` or ``<0x0A>``, the package produces that token. Where two segmentations of a unigram vocabulary are equally
probable, the package may choose the other one. Byte tokens that are not valid UTF-8 may be decoded with another number
of replacement characters.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Literal, cast

from jaxformer.errors import ConfigError
from jaxformer.tokenizers.base import Tokenizer
from jaxformer.tokenizers.characters import CharacterTokenizer
from jaxformer.tokenizers.pretrained import MarianTokenizer, PretrainedTokenizer
from jaxformer.tokenizers.segmentation import SPACE
from jaxformer.tokenizers.subwords import ESCAPE, SubwordTokenizer

TOKENIZER = "tokenizer.json"
"""The file of all tokenizers but those of Marian."""

CLEAN_UP = "clean_up_tokenization_spaces"
"""The setting of ``tokenizer_config.json`` by which transformers changes decoded text."""

NAMES = {"pad": "<pad>", "bos": "<s>", "eos": "</s>", "unk": "<unk>"}
"""The names of special tokens, as in sentencepiece."""

MASK = "[MASK]"
"""The name of the mask token, the first after the vocabulary."""

Frame = Literal["", "end", "both"]
"""The tokens around a text: none, `eos` after it, or `bos` before it too."""


def tokenizer_json(tokenizer: SubwordTokenizer | CharacterTokenizer, *, frame: Frame = "", mask: bool = False) -> str:
    """Returns the content of ``tokenizer.json``.

    Args:
      mask: adds the mask token.

    Raises:
      ConfigError: text is lowercased or split into words first, which the file cannot express.
    """
    if tokenizer.normalizer != type(tokenizer.normalizer)():
        raise ConfigError(f"a tokenizer.json cannot express the normalization {tokenizer.normalizer.described}")
    special = {name: getattr(tokenizer.special, kind) for kind, name in NAMES.items()}
    added = sorted((token, name) for name, token in special.items())
    if mask:
        added.append((tokenizer.vocab_size, MASK))
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    subwords = isinstance(tokenizer, SubwordTokenizer)
    tokens = [{"id": token, "content": name, **flags, "special": True} for token, name in added]
    if mask and subwords:  # the space before a word is part of its first token, which the mask replaces
        tokens[-1]["lstrip"] = True
    content = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": tokens,
        "post_processor": _template(frame, special),
        **(_subwords(tokenizer) if subwords else _characters(tokenizer, special)),
    }
    return json.dumps(content, ensure_ascii=False)


def tokenizer_files(
    tokenizer: Tokenizer, *, frame: Frame = "", mask: bool = False, languages: tuple[str, str] = ("", "")
) -> dict[str, bytes]:
    """Returns the files of a tokenizer by their names, for ``AutoTokenizer`` of transformers.

    Args:
      frame: the tokens around a text, for a vocabulary that was trained here.
      mask: the tokenizer has a mask token, or needs one.
      languages: the source and the target language, of a tokenizer with tokens for them.

    Raises:
      ConfigError: the files cannot express the form of the text.
    """
    special = {"pad_token": "pad", "bos_token": "bos", "eos_token": "eos", "unk_token": "unk"}
    ids = {name: getattr(tokenizer.special, kind) for name, kind in special.items()}
    if isinstance(tokenizer, MarianTokenizer):
        del ids["bos_token"]  # the class has none
        files, kind, names = tokenizer.files, "MarianTokenizer", _named(tokenizer, ids)
    else:
        kind = "PreTrainedTokenizerFast"
        if isinstance(tokenizer, PretrainedTokenizer):
            content, names = tokenizer.content, _named(tokenizer, ids)
        else:
            content = tokenizer_json(cast("SubwordTokenizer", tokenizer), frame=frame, mask=mask)
            names = {name: NAMES[special[name]] for name in ids}
        files = {TOKENIZER: content.encode()}
        if mask:
            names |= {"cls_token": names["bos_token"], "sep_token": names["eos_token"]}
            names["mask_token"] = getattr(tokenizer, "mask", None) or MASK
    # Without token types, which transformers 4 would add to the embeddings of a GPT-2.
    inputs = {"model_input_names": ["input_ids", "attention_mask"]}
    settings = {"tokenizer_class": kind, CLEAN_UP: getattr(tokenizer, "clean_up", False), **inputs, **names}
    settings |= getattr(tokenizer, "settings", {})
    settings |= {name: code for name, code in zip(("src_lang", "tgt_lang"), languages, strict=True) if code}
    return files | {"tokenizer_config.json": (json.dumps(settings, indent=2, ensure_ascii=False) + "\n").encode()}


def _named(tokenizer: Tokenizer, ids: Mapping[str, int]) -> dict[str, str]:
    """Returns the names of special tokens, except for those that share the end token's id and are not padding."""
    end = tokenizer.special.eos
    kept = {name: token for name, token in ids.items() if token != end or name in ("eos_token", "pad_token")}
    return dict(zip(kept, tokenizer.pieces(kept.values()), strict=True))


def _subwords(tokenizer: SubwordTokenizer) -> dict[str, object]:
    pieces = tokenizer.scored_pieces()
    model: dict[str, object] = {"byte_fallback": True}
    if tokenizer.is_unigram:
        model |= {"type": "Unigram", "unk_id": tokenizer.special.unk, "vocab": pieces}
    else:
        ids = {piece: token for token, (piece, _) in enumerate(pieces)}
        model |= {"type": "BPE", "unk_token": NAMES["unk"], "fuse_unk": False, "vocab": ids, "merges": _merges(pieces)}
    return {
        "normalizer": sequence("normalizers", replace(SPACE, ESCAPE), replace(" ", SPACE)),
        "pre_tokenizer": None,
        "decoder": sequence(
            "decoders", {"type": "ByteFallback"}, {"type": "Fuse"}, replace(SPACE, " "), replace(ESCAPE, SPACE)
        ),
        "model": model,
    }


def _merges(pieces: Sequence[tuple[str, float]]) -> list[tuple[str, str]]:
    """Returns the pairs of pieces that merge, the earliest first: a piece with a higher score was merged earlier."""
    known = {piece for piece, _ in pieces}
    ranked = sorted(((-score, token, piece) for token, (piece, score) in enumerate(pieces) if len(piece) > 1))
    splits = ((piece[:i], piece[i:]) for _, _, piece in ranked for i in range(1, len(piece)))
    return [(left, right) for left, right in splits if left in known and right in known]


def _characters(tokenizer: CharacterTokenizer, special: dict[str, int]) -> dict[str, object]:
    return {
        "normalizer": None,
        "pre_tokenizer": {"type": "Split", "pattern": {"Regex": r"[\s\S]"}, "behavior": "Isolated", "invert": False},
        "decoder": {"type": "Fuse"},
        "model": {"type": "WordLevel", "vocab": tokenizer.ids | special, "unk_token": NAMES["unk"]},
    }


def sequence(kind: str, *parts: dict[str, object]) -> dict[str, object]:
    """Returns rules of a kind, such as "decoders", that follow one another."""
    return {"type": "Sequence", kind: list(parts)}


def replace(old: str, new: str, *, kind: Literal["String", "Regex"] = "String") -> dict[str, object]:
    """Returns the rule that replaces a text, or a regular expression."""
    return {"type": "Replace", "pattern": {kind: old}, "content": new}


def _template(frame: Frame, special: dict[str, int]) -> dict[str, object] | None:
    if not frame:
        return None
    token = lambda kind, side: {"SpecialToken": {"id": NAMES[kind], "type_id": side}}
    text = lambda name, side: [{"Sequence": {"id": name, "type_id": side}}, token("eos", side)]
    begin, used = [], [NAMES["eos"]]
    if frame == "both":
        begin, used = [token("bos", 0)], [NAMES["eos"], NAMES["bos"]]
    return {
        "type": "TemplateProcessing",
        "single": begin + text("A", 0),
        "pair": begin + text("A", 0) + text("B", 1),
        "special_tokens": {name: {"id": name, "ids": [special[name]], "tokens": [name]} for name in used},
    }
