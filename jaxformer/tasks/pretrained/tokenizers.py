"""Tokenizers of Hugging Face folders with a model's special tokens, and the files of our tokenizers for it."""

from __future__ import annotations

import dataclasses
import itertools
import json
import pathlib
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from jaxformer.data.marian_tokenizer import MarianTokenizer
from jaxformer.data.pretrained_tokenizer import PretrainedTokenizer
from jaxformer.data.special_tokens import SpecialTokens
from jaxformer.data.tokenizer import Tokenizer
from jaxformer.data.tokenizer_json import MASK, NAMES, Frame, tokenizer_json
from jaxformer.errors import ConfigError, DataError
from jaxformer.interop.tensors import read_json

if TYPE_CHECKING:
    from jaxformer.data.subword_tokenizer import SubwordTokenizer

MARIAN = ("source.spm", "target.spm", "vocab.json")
"""The files of a tokenizer of Marian."""

TOKENIZER = "tokenizer.json"
"""The file of all other tokenizers."""

ENCODER_DECODERS = ("bart", "mbart", "marian", "pegasus", "t5", "mt5")
"""The families whose decoders begin with a separate start token."""

_KINDS = "pad_token unk_token cls_token sep_token mask_token".split()
_BERT: dict[str, str] = dict(zip(_KINDS, "[PAD] [UNK] [CLS] [SEP] [MASK]".split(), strict=True))
_ROBERTA: dict[str, str] = dict(zip(_KINDS, "<pad> <unk> <s> </s> <mask>".split(), strict=True))
_NAMES: dict[str, dict[str, str]] = {
    "bert": _BERT,
    **dict.fromkeys(("roberta", "camembert", "xlm-roberta"), _ROBERTA),
}
"""The special tokens of families whose published files do not name them; they are defaults in transformers."""

_OVERRIDES = {
    ("normalizer", "BertNormalizer"): {
        "do_lower_case": "lowercase",
        "strip_accents": "strip_accents",
        "tokenize_chinese_chars": "handle_chinese_chars",
    },
    ("pre_tokenizer", "ByteLevel"): {"add_prefix_space": "add_prefix_space"},
}
"""Settings of ``tokenizer_config.json`` by which transformers replaces those of rules of ``tokenizer.json``."""


_CLEAN_UP = "clean_up_tokenization_spaces"
"""The setting of ``tokenizer_config.json`` by which transformers changes decoded text."""


def read_tokenizer(
    folder: pathlib.Path, settings: Mapping[str, Any]
) -> tuple[PretrainedTokenizer | MarianTokenizer, Mapping[str, str]]:
    """Returns the tokenizer of a folder, and the names of its special tokens, such as ``{"mask_token": "[MASK]"}``.

    Args:
      settings: the content of ``config.json``.

    Raises:
      ConfigError: the package tokenizers is not installed.
      DataError: a file is missing or damaged, or special tokens cannot be found.
    """
    is_marian = settings.get("model_type") == "marian"
    of_marian = is_marian and not ((folder / TOKENIZER).exists() and not (folder / MARIAN[0]).exists())
    return (_marian if of_marian else _fast)(folder, settings)


def _fast(folder: pathlib.Path, settings: Mapping[str, Any]) -> tuple[PretrainedTokenizer, Mapping[str, str]]:
    path = folder / TOKENIZER
    if not path.exists():
        raise DataError(
            f"{folder} has no tokenizer.json; transformers writes one: "
            "AutoTokenizer.from_pretrained(folder).save_pretrained(folder)"
        )
    rules = read_json(path)
    content = json.dumps(rules, ensure_ascii=False)
    names = dict(_NAMES.get(str(settings.get("model_type")), {}))
    files = [folder / "special_tokens_map.json", folder / "tokenizer_config.json"]
    given = [read_json(file) if file.exists() else {} for file in files]
    for name, value in itertools.chain.from_iterable(one.items() for one in given):
        token = value.get("content") if isinstance(value, dict) else value
        if name.endswith("_token") and isinstance(token, str):
            names[name] = token
    try:
        bare = PretrainedTokenizer(content, SpecialTokens(0, 0, 0, 0))
    except ConfigError:
        raise
    except ValueError as error:
        raise DataError(f"{path} is damaged: {error}") from None
    _check_overrides(given[1], rules, bare, files[1])
    special = _special(bare, names, settings)
    if special is None:
        raise DataError(f"neither the tokenizer nor config.json of {folder} names the end of a text (eos_token)")
    if settings.get("model_type") in ENCODER_DECODERS:
        start = _decoder_start(settings, bare.vocab_size)
        if start is None and special.bos == special.eos:
            raise DataError(f"config.json of {folder} does not say how a text begins: decoder_start_token_id")
        special = special if start is None else dataclasses.replace(special, bos=start)
    if bare.end not in ((), (special.eos,)):
        raise DataError(
            f"{path} puts {' '.join(bare.pieces(bare.end))} after a text; only the end of a text, "
            f"{bare.pieces([special.eos])[0]}, can be there"
        )
    # Transformers ignores the setting with BPE, whose spaces are those of the text.
    is_bpe = "merges" in (rules.get("model") or {})
    return bare.with_special(special, clean_up=bool(given[1].get(_CLEAN_UP)) and not is_bpe), names


def _check_overrides(
    given: Mapping[str, Any], rules: Mapping[str, Any], tokenizer: PretrainedTokenizer, path: pathlib.Path
) -> None:
    """Checks that `given`, of ``tokenizer_config.json``, agrees with the rules and the tokens of ``tokenizer.json``."""
    added = given.get("added_tokens_decoder")
    added = added.values() if isinstance(added, dict) else ()
    tokens = [token["content"] for token in added if isinstance(token, dict) and isinstance(token.get("content"), str)]
    differ = [f"has the token {token!r}" for token in tokens if tokenizer.id_of(token) is None]
    if given.get("tokenizer_class") not in ("PreTrainedTokenizerFast", "TokenizersBackend"):  # which replace nothing
        for (part, kind), settings in _OVERRIDES.items():
            rule = rules.get(part) or {}
            names = settings.items() if rule.get("type") == kind else ()
            values = [(name, given.get(name), rule.get(own)) for name, own in names]
            differ += [f"has {name} {value!r}" for name, value, own in values if value not in (None, own)]
    if differ:
        raise DataError(
            f"{path} {differ[0]}, unlike tokenizer.json; transformers writes files that agree: "
            "AutoTokenizer.from_pretrained(folder).save_pretrained(folder)"
        )


def _decoder_start(settings: Mapping[str, Any], vocab_size: int) -> int | None:
    start = settings.get("decoder_start_token_id")
    if start is not None and not (type(start) is int and 0 <= start < vocab_size):
        raise DataError(f"decoder_start_token_id must be a token below {vocab_size}, got {start!r}")
    return start


def _special(
    tokenizer: PretrainedTokenizer, names: Mapping[str, str], settings: Mapping[str, Any]
) -> SpecialTokens | None:
    """Returns the ids of special tokens; missing ones share the id of the end token. None without an end token."""

    def find(*kinds: str) -> int | None:
        for kind in kinds:
            if kind in names and (token := tokenizer.id_of(names[kind])) is not None:
                return token
        token = settings.get(f"{kinds[-1]}_id")  # which has no ids of the class and separator tokens
        token = token[0] if isinstance(token, list) and token else token
        return token if type(token) is int and 0 <= token < tokenizer.vocab_size else None

    eos = find("sep_token", "eos_token")
    if eos is None:
        return None
    ids = {"pad": find("pad_token"), "bos": find("cls_token", "bos_token"), "eos": eos, "unk": find("unk_token")}
    if not tokenizer.is_special(ids["pad"] if ids["pad"] is not None else eos):  # a token of text
        ids["pad"] = None
    return SpecialTokens(**{name: eos if token is None else token for name, token in ids.items()})


def _marian(folder: pathlib.Path, settings: Mapping[str, Any]) -> tuple[MarianTokenizer, Mapping[str, str]]:
    missing = [name for name in MARIAN if not (folder / name).is_file()]
    if missing:
        raise DataError(f"{folder} has no {missing[0]}; the tokenizer of a Marian is {', '.join(MARIAN)}")
    if (folder / "target_vocab.json").exists():
        raise DataError(f"{folder} has two vocabularies, which cannot be converted; here both sides share one")
    vocabulary, names = read_json(folder / "vocab.json"), {"eos": "</s>", "unk": "<unk>", "pad": "<pad>"}
    absent = [piece for piece in names.values() if type(vocabulary.get(piece)) is not int]
    if absent:
        raise DataError(f"{folder / 'vocab.json'} has no {absent[0]}")
    ids = {name: vocabulary[piece] for name, piece in names.items()}
    start = _decoder_start(settings, len(vocabulary))
    try:
        special = SpecialTokens(bos=ids["pad"] if start is None else start, **ids)
        source, target = ((folder / name).read_bytes() for name in MARIAN[:2])
        path = folder / "tokenizer_config.json"
        clean_up = path.exists() and bool(read_json(path).get(_CLEAN_UP))
        tokenizer = MarianTokenizer(source, target, vocabulary, special, clean_up=clean_up)
    except (OSError, TypeError, ValueError) as error:
        raise DataError(f"the tokenizer of {folder} is damaged: {error}") from None
    return tokenizer, {f"{name}_token": piece for name, piece in names.items()}


def read_languages(folder: pathlib.Path) -> dict[str, str]:
    """Returns the languages that ``tokenizer_config.json`` names with two letters, as settings of the data."""
    path = folder / "tokenizer_config.json"
    found = read_json(path) if path.exists() else {}
    named = {f"{side}_language": found.get(f"{side}_lang") for side in ("source", "target")}
    return {name: code for name, code in named.items() if isinstance(code, str) and re.fullmatch("[a-z]{2}", code)}


def tokenizer_files(tokenizer: Tokenizer, *, frame: Frame = "", mask: bool = False) -> dict[str, bytes]:
    """Returns the files of a tokenizer by their names, for ``AutoTokenizer`` of transformers.

    Args:
      frame: the tokens around a text, for a vocabulary that was trained here.
      mask: the tokenizer has a mask token, or needs one.

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
            names["mask_token"] = mask_name(tokenizer) or MASK
    # Without token types, which transformers 4 would add to the embeddings of a GPT-2.
    inputs = {"model_input_names": ["input_ids", "attention_mask"]}
    settings = {"tokenizer_class": kind, _CLEAN_UP: getattr(tokenizer, "clean_up", False), **inputs, **names}
    return files | {"tokenizer_config.json": (json.dumps(settings, indent=2, ensure_ascii=False) + "\n").encode()}


def _named(tokenizer: Tokenizer, ids: Mapping[str, int]) -> dict[str, str]:
    """Returns the names of special tokens, except for those that share the end token's id and are not padding."""
    end = tokenizer.special.eos
    kept = {name: token for name, token in ids.items() if token != end or name in ("eos_token", "pad_token")}
    return dict(zip(kept, tokenizer.pieces(kept.values()), strict=True))


def mask_name(tokenizer: Tokenizer) -> str | None:
    """Returns the name of the mask token of a pretrained vocabulary; None if it has no such token."""
    known = (_BERT["mask_token"], _ROBERTA["mask_token"])
    found = isinstance(tokenizer, PretrainedTokenizer) and [x for x in known if tokenizer.id_of(x) is not None]
    return found[0] if found else None
