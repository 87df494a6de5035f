"""Conversion of search settings from and to Hugging Face's ``generation_config.json``."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TypeVar

from jaxformer.config import from_data
from jaxformer.errors import ConfigError, DataError
from jaxformer.files import JsonObject
from jaxformer.interop.tensors import Settings
from jaxformer.tasks.config import Beam, GenerationConfig, MinimumRisk, Sample, SearchConfig
from jaxformer.tasks.language_model.config import DecodeConfig as TextDecodeConfig
from jaxformer.tasks.translation.config import DecodeConfig
from jaxformer.tokenizers.base import Tokenizer
from jaxformer.tokenizers.pretrained import PretrainedTokenizer
from jaxformer.tokenizers.special_tokens import SpecialTokens

STOPPING = {"True": "first", "False": "now", "never": "limit"}
"""The rules of `decode.stopping` by the values of ``early_stopping``, as text."""

MOST = 512
"""The ``max_length`` of a search without a limit of its own; without one, transformers would stop after 20 tokens."""

_UNSUPPORTED = (
    "encoder_repetition_penalty encoder_no_repeat_ngram_size num_beam_groups diversity_penalty penalty_alpha "
    "guidance_scale suppress_tokens begin_suppress_tokens force_words_ids constraints sequence_bias "
    "exponential_decay_length_penalty remove_invalid_values stop_strings watermarking_config max_time token_healing "
    "dola_layers"
).split()
"""Settings that change a search and that this library does not support."""

_UNSUPPORTED_IN_SAMPLING = "typical_p epsilon_cutoff eta_cutoff top_h num_beams".split()
"""The same, for settings that are for sampling, and for beams that are sampled."""

_UNSUPPORTED_IN_TEXTS = "bad_words_ids min_length min_new_tokens forced_bos_token_id forced_eos_token_id".split()
"""The same, for settings that only translators have here."""

_NEUTRAL_AT_ONE = "encoder_repetition_penalty num_beam_groups guidance_scale typical_p num_beams".split()
"""The settings among them that have no effect with 1; others have none with zero or nothing, if they are no token."""

_SAMPLING = ("temperature", "top_p", "min_p")
"""The other settings of sampling that searches here have, by the same names and with the same defaults."""

_TOP_K = 50
"""The ``top_k`` of transformers if a folder has none."""

_REPEATS = ("no_repeat_ngram_size", "repetition_penalty")
"""The settings against repeated tokens, which have the same names here."""

_NAMES = {*_UNSUPPORTED, *_UNSUPPORTED_IN_SAMPLING, *_UNSUPPORTED_IN_TEXTS, *_SAMPLING, *_REPEATS} | {
    *"do_sample top_k length_penalty early_stopping max_length max_new_tokens renormalize_logits".split(),
    *"pad_token_id bos_token_id eos_token_id decoder_start_token_id".split(),
}
"""The settings of a search."""

DecodeT = TypeVar("DecodeT", bound=GenerationConfig)


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
    decode: JsonObject = {"search": _search(settings), "forced_end": "never"}
    if "forced_eos_token_id" in settings:
        decode["forced_end"] = "free"
    decode |= {"max_length": _length(settings, "max"), "min_length": _length(settings, "min")}
    if decode["max_length"] == 0 and {"max_new_tokens", "max_length"} & settings.keys():
        raise DataError("the settings of generation cannot be used: their longest text has no token")
    return _decode(DecodeConfig, decode, settings)


def _length(settings: Settings, bound: str) -> object:
    """Returns a bound of lengths without the token that the decoder begins with, which counts in transformers."""
    if f"{bound}_new_tokens" in settings:
        return settings[f"{bound}_new_tokens"]
    length = settings.get(f"{bound}_length", 0)
    return max(0, length - 1) if isinstance(length, int) else length


def _decode(kind: type[DecodeT], decode: JsonObject, settings: Settings) -> DecodeT:
    """Returns a search, whose types and limits are checked, with the settings that have the same names here."""
    decode |= {name: settings[name] for name in _REPEATS if name in settings}
    try:
        return from_data(kind, decode, path="decode")
    except ConfigError as error:
        raise DataError(f"the settings of generation cannot be used: {error}") from None


def _search(settings: Settings) -> JsonObject:
    """Returns the settings of the rule by which tokens are chosen."""
    if settings.get("do_sample"):
        _check_neutral(settings, _UNSUPPORTED_IN_SAMPLING, "sampling")
        sampling = {name: settings[name] for name in _SAMPLING if name in settings}
        return {"kind": "sample", "top_k": settings.get("top_k", _TOP_K)} | sampling
    renormalize = {"renormalize": settings.get("renormalize_logits", False)}
    if settings.get("num_beams", 1) == 1:
        return {"kind": "greedy"} | renormalize
    early = str(settings.get("early_stopping", False))
    rule = {"kind": "beam", "beam_size": settings["num_beams"], "stopping": STOPPING.get(early, early)}
    return rule | {"length_penalty": settings.get("length_penalty", 1.0)} | renormalize


def from_text_generation(settings: Settings, tokenizer: Tokenizer) -> tuple[TextDecodeConfig, JsonObject]:
    """Returns the search of a language model that settings of Hugging Face describe.

    Missing settings have the defaults of `DecodeConfig`, which samples. Lengths that count the prompt, and end tokens
    that the vocabulary lacks, are ignored. Also returns the other settings without a counterpart, which are ignored
    too.
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
    lost = _effective(settings, [*_UNSUPPORTED, *_UNSUPPORTED_IN_TEXTS])
    if settings.get("do_sample"):
        lost |= _effective(settings, _UNSUPPORTED_IN_SAMPLING)
    if "max_new_tokens" in settings:
        decode["max_tokens"] = settings["max_new_tokens"]
    if "do_sample" in settings or "num_beams" in settings:
        decode["search"] = _search({name: value for name, value in settings.items() if name not in lost})
    return _decode(TextDecodeConfig, decode, settings), lost


def _effective(settings: Settings, names: Iterable[str]) -> JsonObject:
    """Returns those of the named settings that have an effect."""
    found = {name: settings[name] for name in names if name in settings}
    is_used = lambda name, value: value != 1 if name in _NEUTRAL_AT_ONE else value or name.endswith("_token_id")
    return {name: value for name, value in found.items() if is_used(name, value)}


def _check_neutral(settings: Settings, names: Iterable[str], where: str) -> None:
    for name, value in _effective(settings, names).items():
        raise DataError(
            f"{name} is {value!r} in the settings of {where}, which jaxformer does not support; "
            "convert a copy of the folder without it"
        )


def _check_counterparts(settings: Settings, special: SpecialTokens, start: tuple[int, ...]) -> None:
    _check_neutral(settings, _UNSUPPORTED, "generation")
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
    lost: dict[str, object] = {"search": decode.search.kind} if isinstance(decode.search, MinimumRisk) else {}
    rule = decode.finder
    if isinstance(rule, Beam):
        if rule.coverage_penalty:
            lost["search.coverage_penalty"] = rule.coverage_penalty
        if rule.beam_size > 1 and rule.normalization != "tokens":
            lost["search.normalization"] = rule.normalization
        if rule.beam_size > 1 and rule.patience != 1:
            lost["search.patience"] = rule.patience
    if not {*decode.forbidden_phrases} <= {*words}:
        lost["forbid"] = decode.forbid
    if decode.shortlist:
        lost["shortlist"] = decode.shortlist
    if isinstance(decode, DecodeConfig):
        if decode.min_ratio:
            lost["min_ratio"] = decode.min_ratio
        if decode.forced_end == "scored" and isinstance(rule, Beam):
            lost["forced_end"] = decode.forced_end
        lost |= {"max_ratio": decode.max_ratio, "max_extra": decode.max_extra}
    return lost


def _choice(decode: SearchConfig) -> JsonObject:
    """Returns the settings that determine how tokens are chosen."""
    shared: JsonObject = {"no_repeat_ngram_size": decode.no_repeat_ngram_size}
    if decode.repetition_penalty != 1:
        shared["repetition_penalty"] = decode.repetition_penalty
    rule = decode.finder
    if isinstance(rule, Sample):
        sampling = {name: getattr(rule, name) for name in ("top_k", *_SAMPLING)}
        return shared | {"renormalize_logits": False, "do_sample": True, "num_beams": 1} | sampling
    shared |= {"renormalize_logits": rule.renormalize, "num_beams": rule.beam_size}
    if rule.beam_size == 1:
        return shared
    early = {"first": True, "now": False, "limit": "never"}[rule.stopping]
    return shared | {"length_penalty": rule.length_penalty, "early_stopping": early}
