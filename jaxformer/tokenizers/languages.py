"""Published tokenizers of many languages, with whose token a text begins: M2M100, NLLB and mBART-50."""

from __future__ import annotations

import base64
import pathlib
import re

from jaxformer.errors import DataError
from jaxformer.files import JsonObject
from jaxformer.interop.tensors import Settings, read_json
from jaxformer.tokenizers.normalization import charsmap_of
from jaxformer.tokenizers.pretrained import M2M100Tokenizer, PretrainedTokenizer
from jaxformer.tokenizers.segmentation import SPACE
from jaxformer.tokenizers.special_tokens import SpecialTokens
from jaxformer.tokenizers.subwords import sentence_pieces
from jaxformer.tokenizers.tokenizer_json import replace, sequence

SENTENCEPIECE = "sentencepiece.bpe.model"
"""The pieces of an M2M100, with ``vocab.json``; and of an mBART-50, whose folder may lack ``tokenizer.json``."""

_CODES = {
    "m2m100": "af am ar ast az ba be bg bn br bs ca ceb cs cy da de el en es et fa ff fi fr fy ga gd gl gu ha he hi hr "
    "ht hu hy id ig ilo is it ja jv ka kk km kn ko lb lg ln lo lt lv mg mk ml mn mr ms my ne nl no ns oc or pa pl ps "
    "pt ro ru sd si sk sl so sq sr ss su sv sw ta th tl tn tr uk ur uz vi wo xh yi yo zh zu",
    "wmt21": "en ha is ja cs ru zh de",
    "mbart50": "ar_AR cs_CZ de_DE en_XX es_XX et_EE fi_FI fr_XX gu_IN hi_IN it_IT ja_XX kk_KZ ko_KR lt_LT lv_LV my_MM "
    "ne_NP nl_XX ro_RO ru_RU si_LK tr_TR vi_VN zh_CN af_ZA az_AZ bn_IN fa_IR he_IL hr_HR id_ID ka_GE km_KH mk_MK ml_IN "
    "mn_MN mr_IN pl_PL ps_AF pt_XX sv_SE sw_KE ta_IN te_IN th_TH tl_XX uk_UA ur_PK xh_ZA gl_ES sl_SI",
}
"""The languages whose tokens follow the pieces, in this order; of M2M100 by its setting ``language_codes``."""

_SOURCES = {"M2M100Tokenizer": "en", "NllbTokenizer": "eng_Latn", "MBart50Tokenizer": "en_XX"}
"""The classes, each with the language of its sources if its settings name none."""

_TAG = {"NllbTokenizer": r"[a-z]{3}_[A-Z][a-z]{3}", "MBart50Tokenizer": "[a-z]{2}_[A-Z]{2}"}
"""The names of the tokens for languages."""


def class_with_languages(folder: pathlib.Path, family: str) -> str:
    """Returns the class of a folder's tokenizer if it is one of this file, else an empty name."""
    path = folder / "tokenizer_config.json"
    named = read_json(path).get("tokenizer_class") if path.exists() else None
    if family == "m2m_100" and not named:
        named = "M2M100Tokenizer" if (folder / "vocab.json").exists() else "NllbTokenizer"
    named = str(named).removesuffix("Fast")
    return named if named in _SOURCES else ""


def default_source(named: str) -> str:
    """Returns the language of the sources if the settings of this class name none."""
    return _SOURCES[named]


def replace_rules(rules: JsonObject, named: str, config: Settings) -> None:
    """Replaces the rules of a ``tokenizer.json`` by those of its class, as transformers does."""
    if config.get("legacy_behaviour"):
        raise DataError("legacy_behaviour is true in tokenizer_config.json, by which a text ends with its language")
    spaces = {"type": "Metaspace", "replacement": SPACE, "prepend_scheme": "always", "split": True}
    rules["pre_tokenizer"], rules["decoder"] = spaces, spaces
    normalizer = rules.get("normalizer") or {}
    compiled = [x for x in normalizer.get("normalizers", [normalizer]) if x.get("type") == "Precompiled"][:1]
    rules["normalizer"] = None
    if compiled or named == "MBart50Tokenizer":
        rules["normalizer"] = sequence("normalizers", *compiled, replace(" {2,}", " ", kind="Regex"))


def rules_of_mbart50(folder: pathlib.Path) -> JsonObject:
    """Returns the ``tokenizer.json`` of an mBART-50 that has only the model of sentencepiece."""
    model = _model(folder)
    try:
        processor, charsmap = sentence_pieces(model), charsmap_of(model)
    except ValueError as error:
        raise DataError(f"{folder / SENTENCEPIECE} is damaged: {error}") from None
    special, codes = ["<s>", "<pad>", "</s>", "<unk>"], _CODES["mbart50"].split()
    vocabulary = [(name, 0.0) for name in special]
    vocabulary += [(processor.id_to_piece(i), processor.get_score(i)) for i in range(3, processor.vocab_size())]
    vocabulary += [(name, 0.0) for name in (*codes, "<mask>")]
    ids = {piece: token for token, (piece, _) in enumerate(vocabulary)}
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False) | {"special": True}
    added = [{"id": ids[name], "content": name, **flags} for name in (*special, *codes, "<mask>")]
    added[-1] |= {"lstrip": True}
    compiled = {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(charsmap).decode()}
    return {
        "version": "1.0",
        "added_tokens": added,
        "normalizer": compiled if charsmap else None,
        "model": {"type": "Unigram", "unk_id": 3, "vocab": vocabulary, "byte_fallback": False},
    }


def _model(folder: pathlib.Path) -> bytes:
    try:
        return (folder / SENTENCEPIECE).read_bytes()
    except OSError as error:
        raise DataError(f"cannot read {folder / SENTENCEPIECE}: {error.strerror}") from None


def tags_of(tokenizer: PretrainedTokenizer, named: str) -> dict[str, int]:
    """Returns the tokens for languages, by their codes."""
    added = sorted(token for token in range(tokenizer.vocab_size) if tokenizer.is_special(token))
    named_tokens = zip(tokenizer.pieces(added), added, strict=True)
    tags = {piece: token for piece, token in named_tokens if re.fullmatch(_TAG[named], piece)}
    if not tags:
        raise DataError(f"the tokenizer has no tokens for languages, which a {named} has")
    return tags


def m2m100_tokenizer(
    folder: pathlib.Path, config: Settings, settings: Settings, kept: Settings
) -> tuple[M2M100Tokenizer, dict[str, str]]:
    """Returns the tokenizer of a folder with ``vocab.json``, and the names of its special tokens.

    Args:
      config: the content of ``tokenizer_config.json``.
      settings: the content of ``config.json``.
      kept: settings for export.
    """
    vocabulary, names = read_json(folder / "vocab.json"), ("<s>", "<pad>", "</s>", "<unk>")
    if absent := [name for name in names if type(vocabulary.get(name)) is not int]:
        raise DataError(f"{folder / 'vocab.json'} has no {absent[0]}")
    if (key := str(config.get("language_codes") or "m2m100")) not in ("m2m100", "wmt21"):
        raise DataError(f"language_codes in tokenizer_config.json must be m2m100 or wmt21, got {key!r}")
    languages = _CODES[key].split()
    _, pad, eos, unk = (vocabulary[name] for name in names)
    start, rows = settings.get("decoder_start_token_id"), settings.get("vocab_size")
    more = max(0, min(8, rows - len(vocabulary) - len(languages))) if type(rows) is int else 0
    kept = {**kept, "tokenizer_class": "M2M100Tokenizer", "language_codes": key, "num_madeup_words": more}
    try:
        special = SpecialTokens(pad=pad, bos=eos if start is None else start, eos=eos, unk=unk)
        tokenizer = M2M100Tokenizer(_model(folder), vocabulary, special, languages=languages, settings=kept)
    except (TypeError, ValueError) as error:
        raise DataError(f"the tokenizer of {folder} is damaged: {error}") from None
    return tokenizer, dict(zip(("bos_token", "pad_token", "eos_token", "unk_token"), names, strict=True))
