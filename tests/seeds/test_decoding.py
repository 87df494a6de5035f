"""CHECKLIST section D: search, with the documents' own example."""

import itertools

import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer import decoding
from jaxformer.inspection import beams
from tests.selection import first

WORDS = ["<pad>", "<s>", "</s>", "I", "Me", "am", "have", "too", "is", "a", "student"]
OTHERS = 200  # words that share what is left of each distribution: p(others) << 1
VOCABULARY = [*WORDS, *["x"] * OTHERS]
ID = {word: i for i, word in enumerate(WORDS)}
NEXT = {
    "<s>": {"I": 0.60, "Me": 0.30},
    "I": {"am": 0.90, "have": 0.03},
    "Me": {"too": 0.60, "is": 0.20, "am": 0.01},
    "am": {"a": 0.70, "student": 0.10},
    "a": {"student": 0.80},
    "student": {"</s>": 1.0},
}


def model(choices):
    """The step function of a model whose next word depends on the last one."""
    table = np.full((len(WORDS) + OTHERS, len(WORDS) + OTHERS), 1e-12)
    table[:, len(WORDS) :] = 1 / OTHERS
    for word, following in choices.items():
        table[ID[word], len(WORDS) :] = max(1e-12, 1 - sum(following.values())) / OTHERS
        for name, probability in following.items():
            table[ID[word], ID[name]] = probability
    logits = jnp.log(jnp.asarray(table, jnp.float32))
    return lambda tokens, state: (logits[tokens], state)


def limits(max_length):
    return decoding.Limits(max_length=max_length, bos=1, eos=2)


def search(choices, **options):
    state = decoding.TreeState(jnp.zeros((1, 2), jnp.int32))
    return decoding.beam_search(model(choices), state, limits(6), beam_size=2, **options)


def words(tokens):
    return " ".join(VOCABULARY[t] for t in np.asarray(tokens) if t > ID["</s>"])


def test_d3_toy_beam_step_by_step():
    """B = 2 keeps the best two of each step and ends with "I am a student": .6 * .9 * .7 * .8 = .3024, log -1.1960.

    Step 2 has five named candidates; "Me too" is dropped in step 3, as the document says.
    """
    trace = decoding.BeamTrace(num_candidates=5)
    found = search(NEXT, length_penalty=0.0, trace=trace)
    first, second, third, fourth = (
        [(words(one.tokens), one.log_prob, one.fate) for one in step[0]] for step in trace.steps[:4]
    )

    def expect(step, *expected):
        for (sentence, log_prob, fate), (name, probability, kept) in zip(step, expected, strict=False):
            assert (sentence, fate) == (name, "live" if kept else "pruned")
            assert log_prob == pytest.approx(np.log(probability), abs=1e-4)

    expect(first, ("I", 0.60, True), ("Me", 0.30, True))
    np.testing.assert_allclose([log_prob for _, log_prob, _ in first[:2]], [-0.5108, -1.2040], atol=5e-5)
    expect(
        second,
        ("I am", 0.54, True),
        ("Me too", 0.18, True),
        ("Me is", 0.06, False),
        ("I have", 0.018, False),
        ("Me am", 0.003, False),
    )
    np.testing.assert_allclose([log_prob for _, log_prob, _ in second[:2]], [-0.6162, -1.7148], atol=5e-5)
    expect(third, ("I am a", 0.378, True), ("I am student", 0.054, True))
    assert not any(sentence.startswith("Me") and fate == "live" for sentence, _, fate in third)
    expect(fourth, ("I am a student", 0.3024, True))
    assert words(found.tokens[0, 0]) == "I am a student"
    np.testing.assert_allclose(found.log_probs[0, 0], -1.1960, atol=5e-4)
    assert "0.5400   -0.6162   -0.6162  live      I am" in beams.as_text(trace, VOCABULARY.__getitem__)


@pytest.mark.full
def test_d3_greedy_takes_the_same_path():
    """D3, W: in the document's example greedy search finds the same, so it does not show that a beam can recover."""
    found = decoding.greedy(model(NEXT), decoding.TreeState(jnp.zeros((1, 1), jnp.int32)), limits(6))
    assert words(found.tokens[0, 0]) == "I am a student"


def test_d3_a_case_where_greedy_loses():
    """D3, our addition: the best first word is a mistake, and only a beam recovers from it."""
    table = np.full((6, 6), -20.0, np.float32)
    table[1, 3], table[1, 4] = np.log(0.6), np.log(0.4)
    table[3, 2], table[3, 5] = np.log(0.3), np.log(0.3)
    table[3, 3] = np.log(0.4)
    table[4, 2] = np.log(1.0)
    table[5, 2] = table[3, 2]

    def step(tokens, state):
        return jnp.asarray(table)[tokens], state

    greedy = decoding.greedy(step, decoding.TreeState(jnp.zeros((1, 1))), limits(3))
    beam = decoding.beam_search(
        step,
        decoding.TreeState(jnp.zeros((1, 2))),
        limits(3),
        beam_size=2,
        length_penalty=0.0,
        stopping="limit",
    )
    assert np.asarray(beam.tokens[0, 0]).tolist() == [4, 2, 0]
    assert float(beam.log_probs[0, 0]) > float(greedy.log_probs[0, 0])


@pytest.mark.parametrize("alpha", first([0.0, 0.6, 1.0], 1.0))
def test_d4_the_documents_scores(alpha):
    """Score / L ** alpha where L counts words: "I am a" has L = 3, "I am a student" L = 4."""
    expected = {0.0: (-0.9729, -1.1960), 0.6: (-0.5032, -0.5206), 1.0: (-0.3243, -0.2990)}[alpha]
    trace = decoding.BeamTrace()
    found = search(NEXT, length_penalty=decoding.LengthPenalty(alpha, count_eos=False), trace=trace)
    scores = {words(one.tokens): one.score for step in trace.steps[2:4] for one in step[0]}
    np.testing.assert_allclose((scores["I am a"], scores["I am a student"]), expected, atol=1e-4)
    ranked = {words(found.tokens[0, k]): float(found.scores[0, k]) for k in range(2)}
    assert ranked["I am a student"] == pytest.approx(expected[1], abs=1e-4)


@pytest.mark.parametrize(("count_eos", "flip"), [(False, 0.718), pytest.param(True, 0.925, marks=pytest.mark.full)])
def test_d4_where_the_order_flips(count_eos, flip):
    """Two sentences of these probabilities: the longer one overtakes at alpha = .718, and later if L counts eos."""
    path = lambda *names: {one: {other: 1.0} for one, other in itertools.pairwise(names)}
    ends = (
        {"<s>": {"I": 0.378, "Me": 0.3024}} | path("I", "am", "a", "</s>") | path("Me", "too", "is", "student", "</s>")
    )
    for alpha, best in ((flip - 0.004, "I am a"), (flip + 0.004, "Me too is student")):
        found = search(ends, length_penalty=decoding.LengthPenalty(alpha, count_eos=count_eos), stopping="limit")
        assert {words(found.tokens[0, k]) for k in range(2)} == {"I am a", "Me too is student"}
        assert words(found.tokens[0, 0]) == best


@pytest.mark.full
def test_d6_stops_at_end():
    """D6: nothing follows the end token but padding."""
    found = decoding.greedy(model(NEXT), decoding.TreeState(jnp.zeros((1, 1), jnp.int32)), limits(9))
    length = int(found.lengths[0, 0])
    assert int(found.tokens[0, 0, length - 1]) == ID["</s>"]
    assert not np.asarray(found.tokens[0, 0, length:]).any()
