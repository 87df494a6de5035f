"""The tokenizers of folders of Hugging Face, with the special tokens that a model was trained with."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Mapping
from typing import Any

from jaxformer.data.marian_tokenizer import MarianTokenizer
from jaxformer.data.pretrained_tokenizer import PretrainedTokenizer
from jaxformer.data.special_tokens import SpecialTokens
from jaxformer.errors import ConfigError, DataError
from jaxformer.interop.tensors import read_json

MARIAN = ("source.spm", "target.spm", "vocab.json")
"""The files of a tokenizer of Marian."""

_KINDS = "pad_token unk_token cls_token sep_token mask_token".split()
_BERT: dict[str, str] = dict(zip(_KINDS, "[PAD] [UNK] [CLS] [SEP] [MASK]".split(), strict=True))
_ROBERTA: dict[str, str] = dict(zip(_KINDS, "<pad> <unk> <s> </s> <mask>".split(), strict=True))
_NAMES: dict[str, dict[str, str]] = {
    "bert": _BERT,
    **dict.fromkeys(("roberta", "camembert", "xlm-roberta"), _ROBERTA),
}
"""The special tokens of families whose published files do not name them; they are defaults in transformers."""


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
    return (_marian if settings.get("model_type") == "marian" else _fast)(folder, settings)


def _fast(folder: pathlib.Path, settings: Mapping[str, Any]) -> tuple[PretrainedTokenizer, Mapping[str, str]]:
    path = folder / "tokenizer.json"
    if not path.exists():
        raise DataError(
            f"{folder} has no tokenizer.json; transformers writes one: "
            "AutoTokenizer.from_pretrained(folder).save_pretrained(folder)"
        )
    content = json.dumps(read_json(path), ensure_ascii=False)
    names = dict(_NAMES.get(str(settings.get("model_type")), {}))
    for file in ("special_tokens_map.json", "tokenizer_config.json"):
        for name, value in (read_json(folder / file) if (folder / file).exists() else {}).items():
            token = value.get("content") if isinstance(value, dict) else value
            if name.endswith("_token") and isinstance(token, str):
                names[name] = token
    try:
        bare = PretrainedTokenizer(content, SpecialTokens(0, 0, 0, 0))
    except ConfigError:
        raise
    except ValueError as error:
        raise DataError(f"{path} is damaged: {error}") from None
    special = _special(bare, names, settings)
    if special is None:
        raise DataError(f"neither the tokenizer nor config.json of {folder} names the end of a text (eos_token)")
    return bare.with_special(special), names


def _special(
    tokenizer: PretrainedTokenizer, names: Mapping[str, str], settings: Mapping[str, Any]
) -> SpecialTokens | None:
    """Returns the ids of special tokens; those that a vocabulary lacks share the id of its end. None without an end."""

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
    start = settings.get("decoder_start_token_id")
    if type(start) is int and 0 <= start < tokenizer.vocab_size:
        ids["bos"] = start
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
    start = settings.get("decoder_start_token_id", ids["pad"])
    try:
        special = SpecialTokens(bos=start, **ids)
        source, target = ((folder / name).read_bytes() for name in MARIAN[:2])
        tokenizer = MarianTokenizer(source, target, vocabulary, special)
    except (OSError, TypeError, ValueError) as error:
        raise DataError(f"the tokenizer of {folder} is damaged: {error}") from None
    return tokenizer, {f"{name}_token": piece for name, piece in names.items()}
