"""The search of translators in the settings of Hugging Face (``generation_config.json``), in both directions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jaxformer.data.special_tokens import SpecialTokens
from jaxformer.errors import DataError
from jaxformer.tasks.translation.config import DecodeConfig

STOPPING = {True: "first", False: "now", "never": "limit"}
"""The rules of `decode.stopping` by the values of ``early_stopping``."""

MOST = 512
"""The ``max_length`` of a search without a limit of its own; without one, transformers would stop after 20 tokens."""

_NEUTRAL: dict[str, Any] = {
    "do_sample": False,
    "repetition_penalty": 1.0,
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
}
"""Settings that change a search and that searches here do not have, with the values that change nothing."""


def from_generation(settings: Mapping[str, Any], special: SpecialTokens, start: tuple[int, ...]) -> DecodeConfig:
    """Returns the search that settings of Hugging Face describe; what they leave out is as in transformers.

    Args:
      start: the tokens that a text begins with.

    Raises:
      DataError: a value is wrong, or has no counterpart here.
    """
    given = {name: value for name, value in settings.items() if value is not None}
    _check_counterparts(given, special, start)
    beams = _integer(given, "num_beams", 1)
    found: dict[str, Any] = {
        "beam_size": beams,
        "no_repeat_ngram_size": _integer(given, "no_repeat_ngram_size", 0),
        "renormalize": given.get("renormalize_logits", False) is True,
        "forced_end": "free" if "forced_eos_token_id" in given else "never",
    }
    if beams != 1:
        rule = given.get("early_stopping", False)
        if not isinstance(rule, bool | str) or rule not in STOPPING:
            raise DataError(f"early_stopping must be true, false or 'never', got {rule!r}")
        found["stopping"] = STOPPING[rule]
    # Their lengths count the token that the decoder begins with, unless they are of new tokens.
    if "max_new_tokens" in given:
        found["max_length"] = _integer(given, "max_new_tokens", 0, least=1)
    elif "max_length" in given:
        found["max_length"] = _integer(given, "max_length", 0, least=2) - 1
    if "min_new_tokens" in given:
        found["min_length"] = _integer(given, "min_new_tokens", 0)
    elif "min_length" in given:
        found["min_length"] = max(0, _integer(given, "min_length", 0) - 1)
    try:
        if beams != 1 and "length_penalty" in given:
            found["length_penalty"] = float(given["length_penalty"])
        return DecodeConfig(**found)
    except (TypeError, ValueError) as error:
        raise DataError(f"the settings of generation cannot be used: {error}") from None


def _integer(given: Mapping[str, Any], name: str, default: int, *, least: int = 0) -> int:
    value = given.get(name, default)
    if type(value) is not int or value < least:
        raise DataError(f"{name} must be an integer of at least {least}, got {value!r}")
    return value


def _check_counterparts(given: Mapping[str, Any], special: SpecialTokens, start: tuple[int, ...]) -> None:
    for name, neutral in _NEUTRAL.items():
        if given.get(name, neutral) != neutral:
            raise DataError(
                f"{name} is {given[name]!r} in the settings of generation, which searches here do not have; "
                f"convert a copy of the folder with {neutral!r} there"
            )
    words, never = given.get("bad_words_ids", []), [[special.pad], [special.bos]]
    if not isinstance(words, list) or any(word not in never for word in words):
        raise DataError(
            f"bad_words_ids must hold only the tokens of padding, {special.pad}, and of the decoder's start, "
            f"{special.bos}, got {words!r}"
        )
    ends = given.get("forced_eos_token_id", special.eos)
    if ends not in (special.eos, [special.eos]):
        raise DataError(f"forced_eos_token_id must be the end of a text, {special.eos}, got {ends!r}")
    begin = given.get("forced_bos_token_id")
    if begin is not None and (begin,) != start:
        raise DataError(
            f"forced_bos_token_id is {begin!r}, but texts of the tokenizer begin with {start or 'no token'}; "
            "only that can be forced"
        )


def to_generation(decode: DecodeConfig, special: SpecialTokens, start: tuple[int, ...], longest: int) -> dict[str, Any]:
    """Returns a search as settings of Hugging Face, as far as it has them.

    Args:
      longest: the most tokens of a text, if the search has no limit of its own.
    """
    rules = {ours: theirs for theirs, ours in STOPPING.items()}
    result: dict[str, Any] = {
        "num_beams": decode.beam_size,
        "no_repeat_ngram_size": decode.no_repeat_ngram_size,
        "renormalize_logits": decode.renormalize,
        "max_length": 1 + (decode.max_length or longest),
        "min_length": 1 + decode.min_length if decode.min_length else 0,
        "forced_eos_token_id": special.eos if decode.forced_end == "free" else None,
        "forced_bos_token_id": start[0] if start else None,
        "bad_words_ids": [[token] for token in sorted({special.pad, special.bos} - {special.eos})] or None,
    }
    if decode.beam_size > 1:
        result |= {"length_penalty": decode.length_penalty, "early_stopping": rules.get(decode.stopping, True)}
    return {name: value for name, value in result.items() if value is not None}
