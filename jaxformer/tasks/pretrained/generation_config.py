"""Conversion of search settings from and to Hugging Face's ``generation_config.json``."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Literal

from jaxformer.errors import DataError
from jaxformer.files import JsonObject
from jaxformer.interop.tensors import Settings
from jaxformer.tasks.config import Beam, GenerationConfig, Greedy, MinimumRisk, Sample, SearchConfig
from jaxformer.tasks.language_model.config import DecodeConfig as TextDecodeConfig
from jaxformer.tasks.translation.config import DecodeConfig
from jaxformer.tokenizers.base import Tokenizer
from jaxformer.tokenizers.pretrained import PretrainedTokenizer
from jaxformer.tokenizers.special_tokens import SpecialTokens

STOPPING: Mapping[bool | str, Literal["first", "now", "limit"]] = {True: "first", False: "now", "never": "limit"}
"""The rules of `decode.stopping` by the values of ``early_stopping``."""

MOST = 512
"""The ``max_length`` of a search without a limit of its own; without one, transformers would stop after 20 tokens."""

_NEUTRAL: JsonObject = {
    "encoder_repetition_penalty": 1.0,
    "encoder_no_repeat_ngram_size": 0,
    "num_beam_groups": 1,
    "diversity_penalty": 0.0,
    "penalty_alpha": 0.0,
    "guidance_scale": 1.0,
    "suppress_tokens": [],
    "begin_suppress_tokens": [],
    "force_words_ids": [],
    "constraints": [],
    "sequence_bias": {},
    "exponential_decay_length_penalty": [],
    "remove_invalid_values": False,
    "stop_strings": None,
    "watermarking_config": None,
    "max_time": None,
    "token_healing": False,
    "dola_layers": None,
}
"""Settings that change a search and that this library does not support, with the values that have no effect."""

_NEUTRAL_IN_SAMPLING: JsonObject = {
    "typical_p": 1.0,
    "epsilon_cutoff": 0.0,
    "eta_cutoff": 0.0,
    "top_h": None,
    "num_beams": 1,
}
"""The same, for settings that are for sampling, and for beams that are sampled."""

_NEUTRAL_IN_TEXTS: JsonObject = {
    "bad_words_ids": [],
    "min_length": 0,
    "min_new_tokens": 0,
    "forced_bos_token_id": None,
    "forced_eos_token_id": None,
}
"""The same, for settings that only translators have here."""

_PROBABILITIES = {"temperature": 1.0, "top_p": 1.0, "min_p": 0.0}
"""The other settings of sampling that searches here have, by the same names, with the values that change nothing."""

_TOP_K = 50
"""The ``top_k`` of transformers if a folder has none."""

_NAMES = (
    {*_NEUTRAL, *_NEUTRAL_IN_SAMPLING, *_NEUTRAL_IN_TEXTS, *_PROBABILITIES}
    | {
        "do_sample",
        "top_k",
        "length_penalty",
        "early_stopping",
        "max_length",
        "max_new_tokens",
        "no_repeat_ngram_size",
        "renormalize_logits",
    }
    | {f"{name}_token_id" for name in ("pad", "bos", "eos", "decoder_start")}
)
"""The settings of a search."""

_WITH_IDS = ("bad_words_ids", "suppress_tokens", "begin_suppress_tokens")
"""The settings that are lists of tokens, or of sequences of them, besides those whose names end with ``_token_id``."""

_IDS_WITHIN = ("force_words_ids", "sequence_bias", "constraints", "forced_decoder_ids")
"""The settings with tokens in other forms, which no search here has."""


def of_model(settings: Settings) -> JsonObject:
    """Returns the settings of the search in a ``config.json``, for a folder without ``generation_config.json``."""
    return {name: value for name, value in settings.items() if name in _NAMES}


def from_generation(settings: Settings, special: SpecialTokens, start: tuple[int, ...]) -> DecodeConfig:
    """Returns the search that Hugging Face settings describe, with transformers' defaults for missing ones.

    Args:
      start: the tokens that a text begins with.

    Raises:
      DataError: a value is wrong, or has no counterpart here.
    """
    settings = {name: value for name, value in settings.items() if value is not None}
    _check_counterparts(settings, special, start)
    decode = _repeats(settings)
    # Lengths of transformers count the token that the decoder begins with, except those of new tokens.
    if "max_new_tokens" in settings:
        decode["max_length"] = _integer(settings, "max_new_tokens", 0, least=1)
    elif "max_length" in settings:
        decode["max_length"] = _integer(settings, "max_length", 0, least=2) - 1
    if "min_new_tokens" in settings:
        decode["min_length"] = _integer(settings, "min_new_tokens", 0)
    elif "min_length" in settings:
        decode["min_length"] = max(0, _integer(settings, "min_length", 0) - 1)
    try:
        forced_end = "free" if "forced_eos_token_id" in settings else "never"
        return DecodeConfig(search=_search(settings), forced_end=forced_end, **decode)
    except (TypeError, ValueError) as error:
        raise DataError(f"the settings of generation cannot be used: {error}") from None


def _search(settings: Settings) -> Beam | Greedy | Sample:
    """Returns the rule by which tokens are chosen."""
    if not isinstance(settings.get("do_sample", False), bool):
        raise DataError(f"do_sample must be true or false, got {settings['do_sample']!r}")
    if settings.get("do_sample"):
        _check_neutral(settings, _NEUTRAL_IN_SAMPLING, "in the settings of sampling")
        temperature, top_p, min_p = (_number(settings, name, neutral) for name, neutral in _PROBABILITIES.items())
        top_k = _integer(settings, "top_k", _TOP_K)
        return Sample(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    beams, renormalize = _integer(settings, "num_beams", 1), settings.get("renormalize_logits", False) is True
    if beams == 1:
        return Greedy(renormalize=renormalize)
    rule = settings.get("early_stopping", False)
    if not isinstance(rule, bool | str) or rule not in STOPPING:
        raise DataError(f"early_stopping must be true, false or 'never', got {rule!r}")
    penalty = float(settings.get("length_penalty", 1.0))
    return Beam(beam_size=beams, stopping=STOPPING[rule], length_penalty=penalty, renormalize=renormalize)


def from_text_generation(settings: Settings, tokenizer: Tokenizer) -> tuple[TextDecodeConfig, JsonObject]:
    """Returns the search of a language model that settings of Hugging Face describe.

    Missing settings have the defaults of `DecodeConfig`, which samples. Lengths that count the prompt, and end tokens
    that the vocabulary lacks, are ignored. Also returns the other settings without a counterpart, which are ignored
    too.

    Raises:
      DataError: a value is wrong.
    """
    eos = tokenizer.special.eos
    is_endless = settings.get("eos_token_id", eos) is None  # an end of null, as `to_text_generation` writes it
    settings = {name: value for name, value in settings.items() if value is not None}
    ends = settings.get("eos_token_id", eos)
    ends = tuple(ends) if isinstance(ends, list) else (ends,)
    if not ends or any(type(token) is not int or token < 0 for token in ends):
        raise DataError(f"eos_token_id must be a token or a list of tokens, got {settings['eos_token_id']!r}")
    ends = [token for token in ends if token < tokenizer.vocab_size]
    decode: JsonObject = {"stop_at_end": not is_endless, "eos_token_ids": ",".join(map(str, ends))}
    if ends == [eos]:
        decode["eos_token_ids"] = ""
    neutral = _NEUTRAL | _NEUTRAL_IN_TEXTS | (_NEUTRAL_IN_SAMPLING if settings.get("do_sample") else {})
    lost = {name: settings[name] for name, value in neutral.items() if settings.get(name, value) != value}
    if "max_new_tokens" in settings:
        decode["max_tokens"] = _integer(settings, "max_new_tokens", 0, least=1)
    decode |= _repeats(settings)
    try:
        if "do_sample" in settings or "num_beams" in settings:
            decode["search"] = _search({name: value for name, value in settings.items() if name not in lost})
        return TextDecodeConfig(**decode), lost
    except (TypeError, ValueError) as error:
        raise DataError(f"the settings of generation cannot be used: {error}") from None


def _integer(settings: Settings, name: str, default: int, *, least: int = 0) -> int:
    value = settings.get(name, default)
    if type(value) is not int or value < least:
        raise DataError(f"{name} must be an integer of at least {least}, got {value!r}")
    return value


def _number(settings: Settings, name: str, default: float) -> float:
    value = settings.get(name, default)
    if type(value) not in (int, float):
        raise DataError(f"{name} must be a number, got {value!r}")
    return value


def _repeats(settings: Settings) -> JsonObject:
    """Returns the settings against repeated tokens."""
    penalty = float(_number(settings, "repetition_penalty", 1.0))
    return {"no_repeat_ngram_size": _integer(settings, "no_repeat_ngram_size", 0), "repetition_penalty": penalty}


def _check_counterparts(settings: Settings, special: SpecialTokens, start: tuple[int, ...]) -> None:
    _check_neutral(settings, _NEUTRAL, "in the settings of generation")
    words, never = settings.get("bad_words_ids", []), [[special.pad], [special.bos]]
    if not isinstance(words, list) or any(word not in never for word in words):
        raise DataError(
            f"bad_words_ids must hold only the tokens of padding, {special.pad}, and of the decoder's start, "
            f"{special.bos}, got {words!r}"
        )
    for name in ("eos_token_id", "forced_eos_token_id"):
        ends = settings.get(name, special.eos)
        if ends not in (special.eos, [special.eos]):
            raise DataError(f"{name} must be the end of a text, {special.eos}, got {ends!r}")
    begin = settings.get("forced_bos_token_id")
    if begin is not None and (begin,) != start:
        raise DataError(
            f"forced_bos_token_id is {begin!r}, but texts of the tokenizer begin with {start or 'no token'}; "
            "only that can be forced"
        )
    if settings.get("no_repeat_ngram_size") == 1 and special.bos == special.eos:  # transformers counts the start
        raise DataError(
            f"no_repeat_ngram_size 1 would forbid the end of a text, {special.eos}, which also begins each text; "
            "convert a copy of the folder with another size"
        )


def with_tokens(settings: Settings, numbers: Mapping[int, int]) -> JsonObject:
    """Returns settings with the new ids of tokens in `numbers`.

    Removed tokens are left out, and so are sequences with one of them and the settings in `_IDS_WITHIN`.
    """
    result: JsonObject = {}
    for name, value in settings.items():
        if name in _WITH_IDS or name.endswith("_token_id"):
            if isinstance(value, list):
                value = [new for one in value if (new := _renumbered(one, numbers)) is not None]
            elif value is not None and (value := _renumbered(value, numbers)) is None:
                continue
        if name not in _IDS_WITHIN:
            result[name] = value
    return result


def _renumbered(token: object, numbers: Mapping[int, int]) -> int | list[int] | None:
    """Returns the new id of a token, or those of a sequence; None if one is removed."""
    if isinstance(token, list):
        found = [numbers[each] for each in token if each in numbers]
        return found if len(found) == len(token) else None
    return numbers.get(token) if isinstance(token, int) else None


def without_special_words(settings: Settings, tokenizer: Tokenizer) -> tuple[Settings, str]:
    """Returns settings without the ``bad_words_ids`` that are special tokens, and the names of these as a `forbid`.

    Such a word is ``<s>`` of a decoder that begins with padding. Padding and the start stay: they need no setting.
    """
    words, names = settings.get("bad_words_ids"), []
    if not isinstance(words, list) or not isinstance(tokenizer, PretrainedTokenizer):
        return settings, ""
    kept: list[object] = []
    for word in words:
        of_search = word in ([tokenizer.special.pad], [tokenizer.special.bos])
        name = "" if of_search else _special_name(word, tokenizer)
        (names if name else kept).append(name or word)
    return {**settings, "bad_words_ids": kept}, ",".join(names)


def _special_name(word: object, tokenizer: PretrainedTokenizer) -> str:
    """Returns the name of a word that is one special token, if the name in a text stands for it."""
    token = word[0] if isinstance(word, list) and len(word) == 1 else None
    if type(token) is not int or not tokenizer.is_special(token):
        return ""
    (name,) = tokenizer.pieces([token])
    return name if "," not in name and tokenizer.segmentations(name) == [(token,)] else ""


def special_words(decode: DecodeConfig, tokenizer: Tokenizer) -> dict[str, int]:
    """Returns the special tokens that `decode.forbid` names."""
    if not isinstance(tokenizer, PretrainedTokenizer):
        return {}
    tokens = {name: tokenizer.id_of(name) for name in decode.forbidden_phrases}
    return {name: token for name, token in tokens.items() if token is not None and tokenizer.is_special(token)}


def _check_neutral(settings: Settings, neutral: Settings, where: str) -> None:
    for name, value in neutral.items():
        if settings.get(name, value) != value:
            raise DataError(
                f"{name} is {settings[name]!r} {where}, which jaxformer does not support; "
                f"convert a copy of the folder with {value!r} there"
            )


def to_generation(
    decode: DecodeConfig, special: SpecialTokens, start: tuple[int, ...], longest: int, never: Iterable[int] = ()
) -> JsonObject:
    """Returns a translator's search as settings of Hugging Face, as far as it has them; see `without_counterpart`.

    Args:
      longest: the maximum number of tokens of a text if the search has no limit.
      never: the special tokens that are never generated, besides padding and the start.
    """
    result: JsonObject = _choice(decode) | {
        "max_length": 1 + (decode.max_length or longest),
        "min_length": 1 + decode.min_length if decode.min_length else 0,
        "forced_eos_token_id": special.eos if decode.forced_end == "free" else None,
        "forced_bos_token_id": start[0] if start else None,
        "bad_words_ids": [[token] for token in sorted({special.pad, special.bos, *never} - {special.eos})] or None,
    }
    return {name: value for name, value in result.items() if value is not None}


def to_text_generation(decode: TextDecodeConfig) -> JsonObject:
    """Returns the search of a language model as settings of Hugging Face; see `without_counterpart`."""
    settings = _choice(decode.rules) | {"max_new_tokens": decode.max_tokens}
    if not decode.stop_at_end:
        settings["eos_token_id"] = None
    elif decode.eos_token_ids:
        settings["eos_token_id"] = list(decode.end_tokens)
    return settings


def without_counterpart(decode: GenerationConfig, words: Collection[str] = ()) -> dict[str, object]:
    """Returns the settings that change this search and that transformers does not have.

    They include the bounds of every translation's length, even the default ones, and an end token that the length limit
    forces with the model's log-probability.

    Args:
      words: the names of `special_words`, which transformers can forbid.
    """
    lost: dict[str, object] = {}
    if isinstance(decode.search, MinimumRisk):
        lost["search"] = decode.search.kind
    rule = decode.finder
    if isinstance(rule, Beam):
        lost["search.coverage_penalty"] = rule.coverage_penalty or None
        if rule.beam_size > 1:
            if rule.normalization != "tokens":
                lost["search.normalization"] = rule.normalization
            if rule.patience != 1:
                lost["search.patience"] = rule.patience
    if not {*decode.forbidden_phrases} <= {*words}:
        lost["forbid"] = decode.forbid
    lost["shortlist"] = decode.shortlist or None
    if isinstance(decode, DecodeConfig):
        lost["min_ratio"] = decode.min_ratio or None
        if decode.forced_end == "scored" and isinstance(rule, Beam):
            lost["forced_end"] = decode.forced_end
        lost |= {"max_ratio": decode.max_ratio, "max_extra": decode.max_extra}
    return {name: value for name, value in lost.items() if value is not None}


def _choice(decode: SearchConfig) -> JsonObject:
    """Returns the settings that determine how tokens are chosen."""
    shared: JsonObject = {"no_repeat_ngram_size": decode.no_repeat_ngram_size}
    if decode.repetition_penalty != 1:
        shared["repetition_penalty"] = decode.repetition_penalty
    rule = decode.finder
    if isinstance(rule, Sample):
        sampling = {name: getattr(rule, name) for name in ("top_k", *_PROBABILITIES)}
        return shared | {"renormalize_logits": False, "do_sample": True, "num_beams": 1} | sampling
    shared |= {"renormalize_logits": rule.renormalize, "num_beams": rule.beam_size}
    if rule.beam_size == 1:
        return shared
    rules = {ours: theirs for theirs, ours in STOPPING.items()}
    return shared | {"length_penalty": rule.length_penalty, "early_stopping": rules[rule.stopping]}
