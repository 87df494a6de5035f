"""Attention maps: pieces are merged into words without losing attention."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxformer.errors import ConfigError
from jaxformer.inspection.attention_maps import (
    AttentionMap,
    as_table,
    as_text,
    between_words,
    by_word,
    entropy,
    most_aligned,
    rollout,
    select,
)
from tests.inspection.small import Pieces, rows


def test_words_and_punctuation():
    pieces = ("▁The", "▁Euro", "pe", "an", "▁l", "'", "accord", ",", "▁l", "’", "été", ".", "</s>")
    found = by_word(AttentionMap(pieces, ("▁a", "</s>"), rows(0, 2, len(pieces))))
    assert found.source == ("The", "European", "l'accord", ",", "l’été", ".", "</s>")
    assert found.target == ("a", "</s>")


@pytest.mark.parametrize(
    ("pieces", "words"),
    [
        (("▁(", "the", "▁cat", ")", "▁sleeps"), ("(", "the", "cat", ")", "sleeps")),
        (("▁", '"', "A", "▁dog", '."', "</s>"), ('"', "A", "dog", '."', "</s>")),
        (("▁a", "▁", "▁", "b", "▁", "</s>"), ("a", "b", "", "</s>")),
        (("▁well", "-", "known"), ("well", "-", "known")),
        (("<s>", "A", "▁dog"), ("<s>", "A", "dog")),
        (("▁ह", "\N{DEVANAGARI VOWEL SIGN I}", "न्द", "\N{DEVANAGARI VOWEL SIGN II}", "।"), ("हिन्दी", "।")),
    ],
)
def test_punctuation_ends_a_word(pieces, words):
    """A row "(the" would hold the attention of two words; vowel signs are not punctuation."""
    assert by_word(AttentionMap(pieces, ("▁a",), rows(0, 1, len(pieces)))).source == words


def test_bytes_are_the_characters_they_spell():
    snow, cut = ("<0xE2>", "<0x98>", "<0x83>"), ("<0xC3>",)
    pieces = ("▁na", "<0xC3>", "<0xAF>", "ve", "▁", *snow, "▁<", "▁a", *cut, "</s>")
    found = by_word(AttentionMap(pieces, ("▁a",), rows(0, 1, len(pieces))))
    assert found.source == ("naïve", "☃", "<", "a", "\ufffd", "</s>")
    np.testing.assert_allclose(found.weights.sum(1), 1)


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.sampled_from(["▁a", "b", "▁c", ".", "d"]), min_size=1, max_size=9),
    st.lists(st.sampled_from(["▁x", "y", "!"]), min_size=1, max_size=9),
    st.integers(0, 99),
)
def test_merging_keeps_every_piece_and_all_attention(source, target, seed):
    weights = rows(seed, len(target), len(source))
    found = by_word(AttentionMap(tuple(source), tuple(target), weights))
    assert "".join(found.source) == "".join(source).replace("▁", "")
    assert "".join(found.target) == "".join(target).replace("▁", "")
    np.testing.assert_allclose(found.weights.sum(1), 1, rtol=1e-9)


def test_source_pieces_are_summed_and_target_pieces_averaged():
    weights = np.array([[0.1, 0.2, 0.7], [0.3, 0.4, 0.3]])
    found = by_word(AttentionMap(("▁a", "b", "▁c"), ("▁x", "y"), weights))
    np.testing.assert_allclose(found.weights, [[0.5, 0.5]])


def test_pieces_are_merged_into_given_words():
    """A piece over two words is shared by its characters, and a space alone belongs to the next word."""
    pieces = Pieces(
        ("L", "'ac", "cord", "▁", "dort", "▁19.", "</s>"), ("I", "t", "▁sleeps", "</s>"), rows(0, 1, 2, 4, 7)
    )
    found = between_words(pieces, ("L'", "accord", "dort", "19", "."), ("It", "sleeps"))
    assert found.source == ("L'", "accord", "dort", "19", ".", "</s>")
    assert found.target == ("It", "sleeps", "</s>")
    the, ac, cord, space, dort, year, end = np.moveaxis(pieces.weights, -1, 0)
    received = np.stack([the + ac / 3, 2 * ac / 3 + cord, space + dort, 2 * year / 3, year / 3, end], -1)
    expected = np.stack([received[:, :, :2].mean(2), received[:, :, 2], received[:, :, 3]], 2)
    np.testing.assert_allclose(found.weights, expected)


def test_a_target_piece_over_two_words_counts_for_both():
    pieces = Pieces(("▁a", "</s>"), ("x'", "y'z", "</s>"), np.array([[[[1.0, 0], [0, 1], [0.5, 0.5]]]]))
    found = between_words(pieces, ("a",), ("x'", "y'", "z"))
    np.testing.assert_allclose(found.weights[0, 0], [[1, 0], [0, 1], [0, 1], [0.5, 0.5]])
    pieces = Pieces(("▁a", "</s>"), ("x", "'y", "</s>"), pieces.weights)
    found = between_words(pieces, ("a",), ("x'", "y"))
    np.testing.assert_allclose(found.weights[0, 0], [[2 / 3, 1 / 3], [0, 1], [0.5, 0.5]])


def test_bytes_belong_to_the_word_of_their_character():
    pieces = Pieces(("na", "<0xC3>", "<0xAF>", "ve", "</s>"), ("▁a", "</s>"), rows(0, 1, 1, 2, 5))
    found = between_words(pieces, ("naïve",), ("a",))
    np.testing.assert_allclose(found.weights[..., 0], pieces.weights[..., :4].sum(-1))


def test_spaces_at_the_end_belong_to_the_end():
    pieces = Pieces(("▁a", "▁", "▁", "</s>"), ("▁x", "▁", "</s>"), rows(0, 1, 2, 3, 4))
    found = between_words(pieces, ("a",), ("x",))
    first, *end = np.moveaxis(pieces.weights, -1, 0)
    received = np.stack([first, sum(end)], -1)
    np.testing.assert_allclose(found.weights, np.stack([received[:, :, 0], received[:, :, 1:].mean(2)], 2))


def test_words_of_another_text_are_refused():
    with pytest.raises(ValueError, match="the words spell 'dogs', but the pieces 'dog'"):
        between_words(Pieces(("▁dog", "</s>"), ("a", "</s>"), rows(0, 1, 1, 2, 2)), ("dogs",), ("a",))


def test_select():
    weights = rows(1, 2, 3, 4, 5)
    pieces = Pieces(("▁a",) * 5, ("▁x",) * 4, weights)
    np.testing.assert_allclose(select(pieces, layer=1, head=2).weights, weights[1, 2])
    np.testing.assert_allclose(select(pieces, layer=1).weights, weights[1].mean(0))
    np.testing.assert_allclose(select(pieces, head=2).weights, weights[:, 2].mean(0))
    np.testing.assert_allclose(select(pieces).weights, weights.mean((0, 1)))
    np.testing.assert_allclose(select(pieces, layer=-1, head=-3).weights, weights[1, 0])  # as `CapturedAttention.layer`
    for choice, message in (({"layer": 2}, "0 to 1"), ({"layer": -3}, "-1 to -2"), ({"head": 3}, "got 3")):
        with pytest.raises(ConfigError, match=message):
            select(pieces, **choice)


def test_most_aligned_finds_a_reversing_head():
    weights = np.full((2, 3, 5, 5), 0.2)
    weights[0, 0] = np.eye(5)[[4, 4, 4, 4, 4]]  # sharp, but all on the end of the sentence
    weights[0, 1] = 0.9 * np.eye(5)[[3, 2, 1, 0, 4]] + 0.1 * np.eye(5)[4]  # ahead by the end of the sentence only
    weights[1, 2] = np.eye(5)[[3, 2, 1, 0, 0]]
    assert most_aligned(Pieces(("▁a",) * 5, ("▁x",) * 5, weights)) == (1, 2)


def test_entropy():
    np.testing.assert_allclose(entropy(np.array([[1.0, 0, 0, 0], [0.25] * 4])), [0, math.log(4)])


def test_rollout_is_the_product_of_layers_with_their_residual_paths():
    weights = np.stack([rows(i, 2, 5, 5) for i in range(3)])  # L = 3, N = 2
    first, second, third = ((layer.mean(0) + np.eye(5)) / 2 for layer in weights)
    np.testing.assert_allclose(rollout(weights), third @ second @ first, atol=1e-12)
    np.testing.assert_allclose(rollout(weights).sum(1), 1)
    np.testing.assert_array_equal(rollout(np.broadcast_to(np.eye(5), (3, 2, 5, 5))), np.eye(5))


def test_text_is_darker_for_larger_weights():
    found = AttentionMap(("one", "three"), ("un", "trois"), np.array([[1.0, 0.0], [0.4, 0.6]]))
    first, second, numbers, words = as_text(found).splitlines()
    assert first == "   un @@@   "
    assert second == "trois ===+++"
    assert numbers.split() == ["1", "2"]
    assert words == "1 one  2 three"
    diverged = AttentionMap(("one", "three"), ("un",), np.array([[np.nan, 1.0]]))
    assert as_text(diverged).splitlines()[0] == "un ???@@@"


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.text("abcdé$|", min_size=1, max_size=9), min_size=1, max_size=6), st.integers(1, 5), st.integers(0, 9)
)
def test_a_table_can_be_read_back(source, decimals, seed):
    """Each number is below the end of its word and rounded; sums and entropies follow."""
    weights = rows(seed, 2, len(source))
    header, *lines = as_table(AttentionMap(tuple(source), ("un", "trois"), weights), decimals=decimals).splitlines()
    assert len({len(header), *map(len, lines)}) == 1
    assert header.split() == [*source, "|", "sum", "entropy"]
    ends, at = [], 0
    for word in header.split():
        at = header.index(word, at) + len(word)
        ends.append(at)
    for line, label, row in zip(lines, ("un", "trois"), weights, strict=True):
        found_label, *cells = line.split()
        assert found_label == label
        assert [line[:end].split()[-1] for end in ends] == cells
        values = [*row, row.sum(), 0 - (row * np.log(row)).sum()]
        assert [cell for cell in cells if cell != "|"] == [f"{x:.{decimals}f}" for x in values]


def test_wide_letters_and_combining_marks_keep_columns_apart():
    attention = AttentionMap(("\u732b\u732b\u732b", "e\u0301"), ("\u732b", "a"), np.full((2, 2), 0.5))
    assert as_table(attention).splitlines()[:2] == [
        "    \u732b\u732b\u732b      e\u0301 |    sum  entropy",
        "\u732b   0.500  0.500 |  1.000    0.693",
    ]
    assert as_text(attention).splitlines()[:2] == ["\u732b ======", " a ======"]
