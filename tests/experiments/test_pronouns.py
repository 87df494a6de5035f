"""Pronouns and their nouns, and heads that are masked."""

import dataclasses

import chex
import jax
import numpy as np

from experiments.exposure.probes import NOUN_FORMS
from experiments.pronouns import __main__ as pronouns
from jaxformer import demo, models, pure
from tests.experiments.pages import published


def test_l3_the_page_has_the_results():
    """L3: its table equals results.json, and the results support its statements."""
    page, results = published(pronouns)
    assert pronouns.tables(results).strip() in page
    assert results["scale"] == dataclasses.asdict(pronouns.FULL)
    for record in results["records"]:
        for part in pronouns.PARTS:
            heads = [head for head in record["heads"] if head["part"] == part]
            largest = max(heads, key=lambda head: head["share"])
            costly = min(heads, key=lambda head: head["margin"])
            assert largest["share"] > 2 * largest["others"]
            assert (largest == costly) == (part == "encoder.self")


def test_the_noun_that_is_meant():
    """L3: the one that "it" stands for is the last before the link; its gender is that of the French pronoun."""
    pairs = demo.generate(2000, seed=3)
    found = {case.contrast.english: case for case in pronouns.cases(pairs)}
    assert len(found) > 50
    for case in found.values():
        assert case.words[case.pronoun] in ("it", "they")
        assert case.antecedent < case.pronoun
        assert case.antecedent not in case.others
    french = {pair.english: pair for pair in pairs}
    for english, case in found.items():
        pair = french[english]
        word = {i: demo.words(pair.french)[j] for i, j in pair.alignment}[case.antecedent]
        genders = {feminine for feminine, _ in NOUN_FORMS[word.lower()]}
        assert (case.contrast.answer == "feminine") in genders


def test_a_masked_head_has_no_output():
    size = {"d_model": 8, "num_heads": 2, "d_ff": 8, "num_encoder_layers": 2, "num_decoder_layers": 1}
    net = pure(models.EncoderDecoder, models.EncoderDecoderConfig(9, 9, **size))
    params = net.init(jax.random.key(0))
    for part, layer in (("encoder.self", 1), ("decoder.cross", 0)):
        other = pronouns.masked(params, part, layer, 1)
        side, name = pronouns.PARTS[part]
        kernel = other[side]["stack"]["layers"][name]["output"]["kernel"]
        assert not np.asarray(kernel[layer, 1]).any()
        other[side]["stack"]["layers"][name]["output"]["kernel"] = kernel.at[layer, 1].set(
            params[side]["stack"]["layers"][name]["output"]["kernel"][layer, 1]
        )
        chex.assert_trees_all_equal(other, params)
