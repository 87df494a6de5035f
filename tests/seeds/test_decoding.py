"""CHECKLIST section D: search, with the documents' own example."""

import jax.numpy as jnp
import numpy as np

from jaxformer import decoding

WORDS = ["<pad>", "<s>", "</s>", "I", "Me", "am", "have", "too", "is", "a", "student", "x"]
ID = {word: i for i, word in enumerate(WORDS)}
NEXT = {  # the document's probabilities; the rest goes to "x", which never wins
    ("<s>",): {"I": 0.60, "Me": 0.30},
    ("I",): {"am": 0.90, "have": 0.03},
    ("Me",): {"too": 0.60, "is": 0.20, "am": 0.01},
    ("am",): {"a": 0.70, "student": 0.10},
    ("a",): {"student": 0.80},
    ("student",): {"</s>": 1.0},
}


def _step(tokens, state):
    table = np.full((len(WORDS), len(WORDS)), 1e-9)
    for (word,), choices in NEXT.items():
        for following, probability in choices.items():
            table[ID[word], ID[following]] = probability
        table[ID[word], ID["x"]] = max(1e-9, 1 - sum(choices.values()))
    table[ID["x"], ID["x"]] = 1.0
    table[ID["too"], ID["x"]] = table[ID["is"], ID["x"]] = table[ID["have"], ID["x"]] = 1.0
    table[ID["x"], ID["x"]] = 1e-9
    return jnp.log(jnp.asarray(table / table.sum(-1, keepdims=True), jnp.float32))[tokens], state


def _words(tokens):
    return [WORDS[t] for t in np.asarray(tokens) if t > ID["</s>"]]


def test_d3_toy_beam():
    """D3: B = 2 keeps "I am a student": .6 * .9 * .7 * .8 = .3024, log -1.1960."""
    state = decoding.TreeState(jnp.zeros((1, 2), jnp.int32))
    found = decoding.beam_search(_step, state, beam_size=2, max_length=6, bos=1, eos=2, length_penalty=0.0)
    assert _words(found.tokens[0, 0]) == ["I", "am", "a", "student"]
    np.testing.assert_allclose(found.log_probs[0, 0], -1.1960, atol=5e-4)


def test_d3_greedy_takes_the_same_path():
    """D3, W: in the document's example greedy search finds the same, so it does not show that a beam can recover."""
    found = decoding.greedy(_step, decoding.TreeState(jnp.zeros((1, 1), jnp.int32)), max_length=6, bos=1, eos=2)
    assert _words(found.tokens[0, 0]) == ["I", "am", "a", "student"]


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

    greedy = decoding.greedy(step, decoding.TreeState(jnp.zeros((1, 1))), max_length=3, bos=1, eos=2)
    beam = decoding.beam_search(
        step,
        decoding.TreeState(jnp.zeros((1, 2))),
        beam_size=2,
        max_length=3,
        bos=1,
        eos=2,
        length_penalty=0.0,
        exact_stop=True,
    )
    assert np.asarray(beam.tokens[0, 0]).tolist() == [4, 2, 0]
    assert float(beam.log_probs[0, 0]) > float(greedy.log_probs[0, 0])


def test_d4_length_normalization():
    """D4: score / L ** alpha; "I am a student" overtakes "I am a" at alpha = .718."""
    student, short = -1.1960, -0.9729
    for alpha, expected in ((0.0, (-1.1960, -0.9729)), (0.6, (-0.5206, -0.5032)), (1.0, (-0.2990, -0.3243))):
        np.testing.assert_allclose((student / 4**alpha, short / 3**alpha), expected, atol=1e-4)
    flip = np.log(student / short) / np.log(4 / 3)
    np.testing.assert_allclose(flip, 0.718, atol=1e-3)


def test_d6_stops_at_end():
    """D6: nothing follows the end token but padding."""
    found = decoding.greedy(_step, decoding.TreeState(jnp.zeros((1, 1), jnp.int32)), max_length=9, bos=1, eos=2)
    length = int(found.lengths[0, 0])
    assert int(found.tokens[0, 0, length - 1]) == ID["</s>"]
    assert not np.asarray(found.tokens[0, 0, length:]).any()
