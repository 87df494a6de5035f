"""The search settings of a Hugging Face folder: each has a counterpart or is refused; conversion is invertible."""

import dataclasses
from types import SimpleNamespace

import pytest

from jaxformer.errors import DataError
from jaxformer.tasks import language_model
from jaxformer.tasks.config import Beam, Greedy, MinimumRisk, Sample
from jaxformer.tasks.pretrained.generation_config import (
    from_generation,
    from_text_generation,
    special_words,
    to_generation,
    to_text_generation,
    without_counterpart,
    without_special_words,
)
from jaxformer.tasks.translation.config import DecodeConfig
from jaxformer.tokenizers.pretrained import PretrainedTokenizer
from jaxformer.tokenizers.special_tokens import SpecialTokens
from tests.tokenizers import pretrained as tokenizers

SPECIAL = SpecialTokens(pad=5, bos=5, eos=0, unk=1)
VOCABULARY = SimpleNamespace(special=SPECIAL, vocab_size=20)


def test_missing_settings_have_the_defaults_of_transformers():
    decode = from_generation({}, SPECIAL, ())
    assert decode == DecodeConfig(search=Greedy(), forced_end="never")
    decode = from_generation({"num_beams": 4, "length_penalty": None}, SPECIAL, ())
    assert decode.search == Beam(beam_size=4, stopping="now", length_penalty=1.0)


def test_new_tokens_take_precedence_over_lengths():
    given = {"max_length": 20, "min_length": 4}
    decode = from_generation(given, SPECIAL, ())
    assert (decode.max_length, decode.min_length) == (19, 3)
    decode = from_generation(given | {"max_new_tokens": 7, "min_new_tokens": 2}, SPECIAL, ())
    assert (decode.max_length, decode.min_length) == (7, 2)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"num_beams": 2.0}, r"cannot be used: decode\.search\.beam_size: got 2\.0, expected int"),
        ({"num_beams": "4"}, "beam_size: got '4', expected int"),
        ({"num_beams": 0}, "the settings of generation cannot be used: decode.search: beam_size"),
        ({"num_beams": 2, "length_penalty": "long"}, "length_penalty: got 'long', expected float"),
        ({"num_beams": 2, "early_stopping": "sometimes"}, "stopping: got 'sometimes', expected one of"),
        ({"max_length": 1}, "their longest text has no token"),
        ({"do_sample": True, "num_beams": 2}, "num_beams is 2 in the settings of sampling, which jaxformer does not"),
        ({"do_sample": True, "typical_p": 0.9}, r"typical_p is 0\.9 in the settings of sampling"),
        ({"do_sample": True, "temperature": "hot"}, "temperature: got 'hot', expected float"),
        ({"do_sample": True, "top_p": 2.0}, "cannot be used: decode.search: top_p must be in"),
        ({"penalty_alpha": 1.3}, r"penalty_alpha is 1\.3 in the settings of generation, .* without it"),
        ({"repetition_penalty": "strong"}, "repetition_penalty: got 'strong', expected float"),
        ({"repetition_penalty": 0}, "cannot be used: decode: repetition_penalty must be above 0 and finite, got 0"),
        (
            {"bad_words_ids": [[5], [9]]},
            r"only the tokens of padding, 5, and of the decoder's start, 5, got \[\[5\], \[9\]\]",
        ),
        ({"bad_words_ids": 5}, "bad_words_ids must hold only"),
        ({"forced_eos_token_id": 7}, "must be the end of a text, 0, got 7"),
        ({"eos_token_id": [0, 7]}, r"eos_token_id must be the end of a text, 0, got \[0, 7\]"),
        ({"stop_strings": ["."]}, r"stop_strings is \['\.'\] in"),
        ({"do_sample": True, "top_h": 0.4}, r"top_h is 0\.4 in the settings of sampling"),
        ({"max_time": 2.0}, r"max_time is 2\.0 in"),
        ({"num_beam_groups": 2}, "num_beam_groups is 2 in"),
        ({"token_healing": True}, "token_healing is True in"),
        ({"forced_bos_token_id": 7}, "is 7, but texts of the tokenizer begin with no token"),
    ],
)
def test_settings_without_a_counterpart_are_refused(given, message):
    with pytest.raises(DataError, match=message):
        from_generation(given, SPECIAL, ())


def test_single_tokens_that_may_not_repeat_include_an_end_that_begins_texts():
    """As in BART: transformers counts the first token, so its texts end at the length limit only."""
    special = SpecialTokens(pad=1, bos=2, eos=2, unk=3)
    with pytest.raises(DataError, match="no_repeat_ngram_size 1 would forbid the end of a text, 2, which also begins"):
        from_generation({"no_repeat_ngram_size": 1}, special, ())
    assert from_generation({"no_repeat_ngram_size": 2}, special, ()).no_repeat_ngram_size == 2
    assert from_generation({"no_repeat_ngram_size": 1}, SPECIAL, ()).no_repeat_ngram_size == 1


@pytest.mark.parametrize("start", [(), (3,)])
def test_writing_and_reading_restores_a_search(start):
    given = {"num_beams": 3, "early_stopping": "never", "length_penalty": 0.5, "no_repeat_ngram_size": 3}
    given |= {"repetition_penalty": 1.3}
    given |= {"max_length": 30, "min_length": 2, "renormalize_logits": True, "bad_words_ids": [[5]]}
    given |= {"forced_eos_token_id": 0} | ({"forced_bos_token_id": start[0]} if start else {})
    decode = from_generation(given, SPECIAL, start)
    assert decode.search.renormalize
    assert to_generation(decode, SPECIAL, start, 511) == given


@pytest.mark.parametrize(
    ("special", "never"),
    [
        (SpecialTokens(pad=0, bos=1, eos=2, unk=3), [[0], [1]]),
        (SpecialTokens(pad=1, bos=2, eos=2, unk=3), [[1]]),  # as BART: the end begins its texts
        (SpecialTokens(pad=2, bos=2, eos=2, unk=2), None),
    ],
)
def test_padding_and_start_tokens_may_be_forbidden(special, never):
    """Searches of this library never choose them, unless they also end a text."""
    written = to_generation(from_generation({}, special, ()), special, (), 511)
    assert written.get("bad_words_ids") == never
    from_generation(written, special, ())


def test_special_tokens_that_are_forbidden_become_phrases():
    """Such as <s> of a decoder that begins with padding; words of a text stay, and are refused."""
    tokenizer = PretrainedTokenizer(tokenizers.byte_level(begin="<s>", pad="<pad>"), SpecialTokens(2, 2, 0, 0))
    begin = tokenizer.id_of("<s>")
    kept, forbid = without_special_words({"bad_words_ids": [[2], [begin], [9], [7, 8]]}, tokenizer)
    assert (kept["bad_words_ids"], forbid) == ([[2], [9], [7, 8]], "<s>")
    decode = DecodeConfig(search=Greedy(), forbid=forbid, forced_end="free")
    words = special_words(decode, tokenizer)
    assert words == {"<s>": begin}
    written = to_generation(decode, tokenizer.special, (), 511, words.values())
    assert written["bad_words_ids"] == sorted([[2], [begin]])
    assert list(without_counterpart(decode, words)) == RATIO
    assert "forbid" in without_counterpart(dataclasses.replace(decode, forbid="<s>,house"), words)


def test_a_search_without_a_limit_gets_one():
    written = to_generation(from_generation({}, SPECIAL, ()), SPECIAL, (), 511)
    assert written["max_length"] == 512
    assert "early_stopping" not in written


def test_writing_and_reading_restores_sampling():
    given = {"do_sample": True, "num_beams": 1, "temperature": 0.7, "top_k": 0, "top_p": 0.9, "min_p": 0.1}
    decode = from_generation(given, SPECIAL, ())
    assert decode.search == Sample(temperature=0.7, top_k=0, top_p=0.9, min_p=0.1)
    assert given.items() <= to_generation(decode, SPECIAL, (), 511).items()
    assert from_generation({"do_sample": True}, SPECIAL, ()).search.top_k == 50  # as in transformers


def test_the_search_of_a_language_model():
    found = to_text_generation(language_model.DecodeConfig(search=Sample(temperature=0.7, top_p=0.9), max_tokens=30))
    expected = {"do_sample": True, "temperature": 0.7, "top_k": 0, "top_p": 0.9, "min_p": 0.0, "max_new_tokens": 30}
    assert expected.items() <= found.items()
    found = to_text_generation(language_model.DecodeConfig(search=Beam(beam_size=3)))
    assert found["num_beams"] == 3
    assert "do_sample" not in found


@pytest.mark.parametrize(
    "decode",
    [
        language_model.DecodeConfig(
            search=Sample(temperature=0.7, top_k=9, top_p=0.9), max_tokens=30, stop_at_end=True, eos_token_ids="2,7"
        ),
        language_model.DecodeConfig(search=Beam(beam_size=3), no_repeat_ngram_size=2, stop_at_end=True),
        language_model.DecodeConfig(search=Greedy(renormalize=True), stop_at_end=True, repetition_penalty=1.2),
    ],
)
def test_writing_and_reading_restores_the_search_of_a_language_model(decode):
    assert from_text_generation(to_text_generation(decode), VOCABULARY) == (decode, {})


def test_a_language_model_samples_by_default():
    """As `jaxformer generate` does; the folder's sampling settings count only if it samples."""
    ours = language_model.DecodeConfig(stop_at_end=True)
    assert from_text_generation({"eos_token_id": SPECIAL.eos, "max_length": 50}, VOCABULARY) == (ours, {})
    of_class = {"eos_token_id": 50256}  # not of the vocabulary
    assert from_text_generation(of_class, VOCABULARY) == (ours, {})
    given = {"eos_token_id": [9, 2, 50256], "do_sample": True, "top_p": 0.8, "penalty_alpha": 0.5, "num_beams": 2}
    found, lost = from_text_generation(given, VOCABULARY)
    assert found == dataclasses.replace(ours, eos_token_ids="9,2", search=Sample(top_k=50, top_p=0.8))
    assert lost == {"penalty_alpha": 0.5, "num_beams": 2}
    for ends in ([], "x", [2, -1], [True]):
        with pytest.raises(DataError, match="eos_token_id must be a token or a list of tokens, got"):
            from_text_generation({"eos_token_id": ends}, VOCABULARY)


def test_beams_of_a_language_model():
    """The default of transformers is ``early_stopping`` False; a single beam has no such setting."""
    given = {"num_beams": 2, "length_penalty": 0.5, "min_length": 3}
    found, lost = from_text_generation(given, VOCABULARY)
    assert (found.search, lost) == (Beam(beam_size=2, length_penalty=0.5, stopping="now"), {"min_length": 3})
    found, _ = from_text_generation(given | {"early_stopping": True, "length_penalty": 1}, VOCABULARY)
    assert found.search == Beam(beam_size=2)
    for greedy in ({"num_beams": 1}, {"do_sample": False}):
        unused = {"length_penalty": 0.5, "early_stopping": False}
        assert from_text_generation(greedy | unused, VOCABULARY)[1] == {}


@pytest.mark.parametrize("stops", [False, True])
def test_a_search_that_goes_on_after_the_end_is_kept(stops):
    """transformers stops at no token only if ``eos_token_id`` is null: it does not read that of ``config.json``."""
    decode = language_model.DecodeConfig(search=Sample(temperature=0.7), stop_at_end=stops)
    written = {"eos_token_id": VOCABULARY.special.eos} | to_text_generation(decode)
    assert (written["eos_token_id"] is None) == (not stops)
    assert from_text_generation(written, VOCABULARY)[0].stop_at_end == stops


RATIO = ["max_ratio", "max_extra"]


@pytest.mark.parametrize(
    ("decode", "names"),
    [
        (DecodeConfig(), ["forced_end", *RATIO]),
        (DecodeConfig(forced_end="free"), RATIO),
        (
            DecodeConfig(search=Beam(normalization="words", patience=2.0), forced_end="never"),
            ["search.normalization", "search.patience", *RATIO],
        ),
        (DecodeConfig(search=Beam(normalization="words", beam_size=1), forced_end="never"), RATIO),
        (
            DecodeConfig(search=Beam(coverage_penalty=0.2), forbid="no"),
            ["search.coverage_penalty", "forbid", "forced_end", *RATIO],
        ),
        (DecodeConfig(search=MinimumRisk(candidates=Sample(temperature=0.5))), ["search", *RATIO]),
        (language_model.DecodeConfig(search=MinimumRisk(), shortlist="words.txt"), ["search", "shortlist"]),
    ],
)
def test_settings_that_a_folder_cannot_hold_are_named(decode, names):
    assert list(without_counterpart(decode)) == names
