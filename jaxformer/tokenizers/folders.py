"""Reads the tokenizers of Hugging Face folders with a model's special tokens; `tokenizer_json` writes them."""

from __future__ import annotations

import dataclasses
import itertools
import json
import pathlib
from collections.abc import Mapping, Sequence

from jaxformer.errors import ConfigError, DataError
from jaxformer.files import JsonObject
from jaxformer.interop.tensors import Settings, read_json
from jaxformer.tokenizers.languages import (
    SENTENCEPIECE,
    class_with_languages,
    m2m100_tokenizer,
    replace_rules,
    rules_of_mbart50,
    tags_of,
)
from jaxformer.tokenizers.moses import CODES
from jaxformer.tokenizers.pretrained import MarianTokenizer, PretrainedTokenizer
from jaxformer.tokenizers.segmentation import SPACE
from jaxformer.tokenizers.special_tokens import SpecialTokens
from jaxformer.tokenizers.tokenizer_json import CLEAN_UP, TOKENIZER, replace, sequence

MARIAN = ("source.spm", "target.spm", "vocab.json")
"""The files of a tokenizer of Marian."""

ENCODER_DECODERS = ("bart", "mbart", "marian", "pegasus", "m2m_100", "t5", "mt5")
"""The families whose decoders begin with a separate start token."""

_KINDS = "pad_token unk_token cls_token sep_token mask_token".split()
_BERT: dict[str, str] = dict(zip(_KINDS, "[PAD] [UNK] [CLS] [SEP] [MASK]".split(), strict=True))
_ROBERTA: dict[str, str] = dict(zip(_KINDS, "<pad> <unk> <s> </s> <mask>".split(), strict=True))
_NAMES: dict[str, dict[str, str]] = {
    **dict.fromkeys(("bert", "distilbert"), _BERT),
    **dict.fromkeys(("roberta", "camembert", "xlm-roberta", "mbart", "m2m_100"), _ROBERTA),
}
"""The special tokens of families whose published files do not name them; they are defaults in transformers."""

_WITH_PREFIX = "XLMRobertaTokenizer", "CamembertTokenizer"
_CLASSES = dict.fromkeys(("t5", "mt5"), "T5Tokenizer") | {"pegasus": "PegasusTokenizer"}
_CLASSES |= dict(zip(("xlm-roberta", "camembert"), _WITH_PREFIX, strict=True))
"""The classes with rules of their own for a unigram vocabulary, by the family for which they are the default."""

_OVERRIDES = (
    ("normalizer", "BertNormalizer", "do_lower_case", "lowercase", True),
    ("normalizer", "BertNormalizer", "strip_accents", "strip_accents", None),
    ("normalizer", "BertNormalizer", "tokenize_chinese_chars", "handle_chinese_chars", True),
    ("pre_tokenizer", "ByteLevel", "add_prefix_space", "add_prefix_space", False),
)
"""The kinds of rules of ``tokenizer.json`` with a setting that transformers replaces: its names in
``tokenizer_config.json`` and in the rules, and its value in the classes of BERT, GPT-2, RoBERTa and BART if the former
does not give it."""

_KEPT = ("chat_template", "model_max_length", "padding_side", "truncation_side", "mask_token", "src_lang", "tgt_lang")
"""Settings of ``tokenizer_config.json`` that commands here do not use, and that an exported folder has again."""

_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")
"""The settings of an added token."""


def read_tokenizer(
    folder: pathlib.Path, settings: Settings
) -> tuple[PretrainedTokenizer | MarianTokenizer, Mapping[str, str]]:
    """Returns the tokenizer of a folder, and the names of its special tokens, such as ``{"mask_token": "[MASK]"}``.

    Args:
      settings: the content of ``config.json``.

    Raises:
      ConfigError: the package tokenizers is not installed.
      DataError: a file is missing or damaged, or special tokens cannot be found.
    """
    named = class_with_languages(folder, str(settings.get("model_type")))
    if named == "M2M100Tokenizer":
        path = folder / "tokenizer_config.json"
        config = read_json(path) if path.exists() else {}
        return m2m100_tokenizer(folder, config, settings, _kept(folder, config))
    is_marian = settings.get("model_type") == "marian"
    of_marian = is_marian and not ((folder / TOKENIZER).exists() and not (folder / MARIAN[0]).exists())
    return (_marian if of_marian else _fast)(folder, settings)


def _fast(folder: pathlib.Path, settings: Settings) -> tuple[PretrainedTokenizer, Mapping[str, str]]:
    path, family = folder / TOKENIZER, str(settings.get("model_type"))
    named = class_with_languages(folder, family)
    from_pieces = named == "MBart50Tokenizer" and not path.exists() and (folder / SENTENCEPIECE).exists()
    if not from_pieces and not path.exists():
        raise DataError(
            f"{folder} has no tokenizer.json; transformers writes one: "
            "AutoTokenizer.from_pretrained(folder).save_pretrained(folder)"
        )
    rules = rules_of_mbart50(folder) if from_pieces else read_json(path)
    files = [folder / "special_tokens_map.json", folder / "tokenizer_config.json"]
    configs = [read_json(file) if file.exists() else {} for file in files]
    names = _special_names(configs, family)
    if isinstance(rules.get("model"), dict):
        if rules["model"].get("dropout"):  # of BPE in training; the tokens of a text would be random
            rules["model"]["dropout"] = None
        if named:
            replace_rules(rules, named, configs[1])
        else:
            _replace_by_class(rules, configs[1], family)
    bare = _parsed(rules, path)
    _check_overrides(configs[1], rules, bare, files[1], family)
    if (added := _added_tokens(rules, configs[1], names, bare)) != rules.get("added_tokens"):
        bare = _parsed(rules | {"added_tokens": added}, path)
    special = _special(bare, names, settings)
    if special is None:
        raise DataError(f"neither the tokenizer nor config.json of {folder} names the end of a text (eos_token)")
    if family in ENCODER_DECODERS:
        start = _decoder_start(settings, bare.vocab_size)
        start = special.eos if start is None and named else start
        if start is None and special.bos == special.eos:
            raise DataError(f"config.json of {folder} does not say how a text begins: decoder_start_token_id")
        special = special if start is None else dataclasses.replace(special, bos=start)
    if not named and bare.end not in ((), (special.eos,)):
        raise DataError(
            f"{path} puts {' '.join(bare.pieces(bare.end))} after a text; only the end of a text, "
            f"{bare.pieces([special.eos])[0]}, can be there"
        )
    # Transformers ignores the setting with BPE, whose spaces are those of the text.
    is_bpe = "merges" in (rules.get("model") or {})
    clean_up = bool(configs[1].get(CLEAN_UP)) and not is_bpe
    kept, tags = _kept(folder, configs[1] | names), tags_of(bare, named) if named else {}
    if named:
        kept |= {"tokenizer_class": named, "additional_special_tokens": [*tags]}
    return bare.with_special(special, clean_up=clean_up, settings=kept, tags=tags), names


def _special_names(configs: Sequence[Settings], family: str) -> dict[str, str]:
    """Returns the names of special tokens in the files, the last one first, or the defaults of the family."""
    names = dict(_NAMES.get(family, {}))
    for name, value in itertools.chain.from_iterable(one.items() for one in configs):
        token = value.get("content") if isinstance(value, dict) else value
        if name.endswith("_token") and isinstance(token, str):
            names[name] = token
    return names


def _parsed(rules: Settings, path: pathlib.Path) -> PretrainedTokenizer:
    try:
        return PretrainedTokenizer(json.dumps(rules, ensure_ascii=False), SpecialTokens(0, 0, 0, 0))
    except ConfigError:
        raise
    except ValueError as error:
        raise DataError(f"{path} is damaged: {error}") from None


def _replace_by_class(rules: JsonObject, config: Settings, family: str) -> None:
    """Replaces the rules for spaces by those of the class that transformers takes, if it has some of its own.

    With the published rules of Llama 2, a text that begins with a space gets another one; with those of Pegasus, a text
    that ends with a space loses it.
    """
    named = str(config.get("tokenizer_class") or _CLASSES.get(family)).removesuffix("Fast")
    if named == "LlamaTokenizer" and rules["model"].get("byte_fallback") and family not in ("mistral", "qwen2"):
        _replace_by_llama(rules, config)  # transformers has other classes for these families, and for bytes
    elif named in _CLASSES.values() and rules["model"].get("type") == "Unigram":
        _replace_by_unigram(rules, named, config)


def _replace_by_llama(rules: JsonObject, config: Settings) -> None:
    prefix = config.get("add_prefix_space") is not False
    scheme = ("always" if config.get("legacy") else "first") if prefix else "never"
    strip = [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if prefix else []
    rules["normalizer"] = None
    rules["pre_tokenizer"] = {"type": "Metaspace", "replacement": SPACE, "prepend_scheme": scheme, "split": False}
    rules["decoder"] = sequence("decoders", replace(SPACE, " "), {"type": "ByteFallback"}, {"type": "Fuse"}, *strip)


def _replace_by_unigram(rules: JsonObject, named: str, config: Settings) -> None:
    """Keeps the vocabulary and the precompiled normalization alone."""
    normalizer = rules.get("normalizer") or {}
    compiled = [x for x in normalizer.get("normalizers", [normalizer]) if x.get("type") == "Precompiled"][:1]
    scheme = "never" if config.get("add_prefix_space") is False and named in _WITH_PREFIX else "always"
    spaces = {"type": "Metaspace", "replacement": SPACE, "prepend_scheme": scheme, "split": True}
    rules["model"]["byte_fallback"], rules["decoder"] = False, spaces
    if named == "PegasusTokenizer":
        steps = (*(compiled or [replace("\\n", " ", kind="Regex")]), replace(" {2,}", " ", kind="Regex"))
        rules["normalizer"], rules["pre_tokenizer"] = sequence("normalizers", *steps), spaces
        return
    rules["normalizer"] = compiled[0] if compiled else None
    rules["pre_tokenizer"] = sequence("pretokenizers", {"type": "WhitespaceSplit"}, spaces)


def _added_tokens(
    rules: Settings, config: Settings, names: Mapping[str, str], tokenizer: PretrainedTokenizer
) -> list[JsonObject]:
    """Returns the added tokens with those of ``tokenizer_config.json``, which transformers finds in texts, too.

    A named padding token is not one of them: it may be a letter of the text.
    """
    tokens = {token["content"]: token for token in rules.get("added_tokens") or ()}
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip"), False)
    for token in _declared(config):
        normalized = {"normalized": not token.get("special", False)}
        declared = {name: token[name] for name in (*_FLAGS, "content") if name in token}
        tokens[token["content"]] = flags | tokens.get(token["content"], {}) | normalized | declared
    for content in (*_additional(config), *(content for name, content in names.items() if name != "pad_token")):
        tokens.setdefault(content, {**flags, "normalized": False, "special": True, "content": content})
    ids = {content: tokenizer.id_of(content) for content in tokens}
    return [token | {"id": ids[content]} for content, token in tokens.items() if ids[content] is not None]


def _declared(config: Settings) -> list[JsonObject]:
    """Returns the tokens in ``added_tokens_decoder``."""
    added = config.get("added_tokens_decoder")
    added = added.values() if isinstance(added, dict) else ()
    return [token for token in added if isinstance(token, dict) and isinstance(token.get("content"), str)]


def _additional(config: Settings) -> list[str]:
    """Returns the names of further special tokens."""
    groups = (config.get(name) for name in ("additional_special_tokens", "extra_special_tokens"))
    tokens = [token for group in groups for token in (group.values() if isinstance(group, dict) else group or ())]
    contents = [token.get("content") if isinstance(token, dict) else token for token in tokens]
    return [content for content in contents if isinstance(content, str)]


def _kept(folder: pathlib.Path, config: Settings) -> JsonObject:
    """Returns the settings of ``tokenizer_config.json`` that are kept for export, with templates of other files."""
    kept = {name: config[name] for name in _KEPT if config.get(name) is not None}
    paths = [folder / "chat_template.jinja", *sorted(folder.glob("additional_chat_templates/*.jinja"))]
    try:
        texts = {path.stem: path.read_text(encoding="utf-8") for path in paths if path.is_file()}
    except (OSError, ValueError) as error:
        raise DataError(f"a chat template of {folder} cannot be read: {error}") from None
    templates = [{"name": name.replace("chat_template", "default"), "template": x} for name, x in texts.items()]
    if templates:
        kept["chat_template"] = templates if len(templates) > 1 else templates[0]["template"]
    return kept


def _check_overrides(
    config: Settings, rules: Settings, tokenizer: PretrainedTokenizer, path: pathlib.Path, family: str
) -> None:
    """Checks that ``tokenizer_config.json``, `config`, agrees with the rules and tokens of ``tokenizer.json``."""
    tokens = [*(token["content"] for token in _declared(config)), *_additional(config)]
    differ = [f"has the token {token!r}" for token in tokens if tokenizer.id_of(token) is None]
    differ += ["has split_special_tokens True"] if config.get("split_special_tokens") else []
    replacing = str(config.get("tokenizer_class") or family)
    if replacing not in ("PreTrainedTokenizerFast", "TokenizersBackend"):  # which replace nothing
        values = [
            (name, config.get(name), rules[part].get(ours), default)
            for part, kind, name, ours, default in _OVERRIDES
            if (rules.get(part) or {}).get("type") == kind
        ]
        differ += [f"has {name} {value!r}" for name, value, ours, _ in values if value not in (None, ours)]
        if replacing.lower().startswith(("bert", "distilbert", "gpt2", "roberta", "bart")):
            silent = [(name, default) for name, value, ours, default in values if value is None and ours != default]
            differ += [f"has no {name}, for which transformers takes {default}" for name, default in silent]
    if differ:
        raise DataError(
            f"{path} {differ[0]}, unlike tokenizer.json; transformers writes files that agree: "
            "AutoTokenizer.from_pretrained(folder).save_pretrained(folder)"
        )


def _decoder_start(settings: Settings, vocab_size: int) -> int | None:
    start = settings.get("decoder_start_token_id")
    if start is not None and not (type(start) is int and 0 <= start < vocab_size):
        raise DataError(f"decoder_start_token_id must be a token below {vocab_size}, got {start!r}")
    return start


def _special(tokenizer: PretrainedTokenizer, names: Mapping[str, str], settings: Settings) -> SpecialTokens | None:
    """Returns the ids of special tokens; missing ones share the id of the end token. None without an end token."""

    def find(*kinds: str) -> int | None:
        for kind in kinds:
            if kind in names and (token := tokenizer.id_of(names[kind])) is not None:
                return token
            token = settings.get(f"{kind}_id")
            token = token[0] if isinstance(token, list) and token else token
            if type(token) is int and 0 <= token < tokenizer.vocab_size:
                return token
        return None

    # Texts of a masked language model are between the class and separator tokens; others may name both, too.
    order = 1 if str(settings.get("model_type")) in _NAMES else -1
    eos = find(*("sep_token", "eos_token")[::order])
    if eos is None:
        return None
    bos = find(*("cls_token", "bos_token")[::order])
    ids = {"pad": find("pad_token"), "bos": bos, "eos": eos, "unk": find("unk_token")}
    if not tokenizer.is_special(ids["pad"] if ids["pad"] is not None else eos):  # a token of text
        ids["pad"] = None
    return SpecialTokens(**{name: eos if token is None else token for name, token in ids.items()})


def _marian(folder: pathlib.Path, settings: Settings) -> tuple[MarianTokenizer, Mapping[str, str]]:
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
        config = read_json(path) if path.exists() else {}
        clean_up, kept = bool(config.get(CLEAN_UP)), _kept(folder, config)
        tokenizer = MarianTokenizer(source, target, vocabulary, special, clean_up=clean_up, settings=kept)
    except (OSError, TypeError, ValueError) as error:
        raise DataError(f"the tokenizer of {folder} is damaged: {error}") from None
    return tokenizer, {f"{name}_token": piece for name, piece in names.items()}


def read_languages(folder: pathlib.Path) -> dict[str, str]:
    """Returns the languages that ``tokenizer_config.json`` names by codes of two letters, as settings of the data."""
    path = folder / "tokenizer_config.json"
    config = read_json(path) if path.exists() else {}
    named = {f"{side}_language": config.get(f"{side}_lang") for side in ("source", "target")}
    return {name: code for name, code in named.items() if isinstance(code, str) and code in CODES}
