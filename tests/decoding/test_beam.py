"""Greedy and beam search against enumeration, on models small enough to enumerate."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer import decoding

PAD, BEGIN, END, VOCAB, LENGTH = 0, 1, 2, 6, 4


def markov(seed, *, steps=3):
    """A model whose logits depend on the step, the last token and the sentence."""
    table = np.random.default_rng(seed).normal(size=(2, steps, VOCAB, VOCAB)).astype(np.float32) * 1.5

    def step(tokens, state):
        logits = jnp.asarray(table)[state["sentence"], jnp.minimum(state["step"], steps - 1), tokens]
        return logits, {**state, "step": state["step"] + 1}

    return step, table


def start(beam_size, batch=2):
    sentence = jnp.broadcast_to(jnp.arange(batch, dtype=jnp.int32)[:, None], (batch, beam_size))
    return {"sentence": sentence, "step": jnp.zeros((batch, beam_size), jnp.int32)}


def enumerate_all(table, sentence, *, length_penalty, limit=LENGTH):
    """Every sequence that ends, with its score, best first; the last place must be END."""
    table = table.astype(np.float64)
    log_probs = table - np.log(np.exp(table).sum(-1, keepdims=True))
    found = []
    for length in range(1, limit + 1):
        for body in itertools.product([t for t in range(VOCAB) if t not in (PAD, BEGIN, END)], repeat=length - 1):
            tokens = (*body, END)
            before = (BEGIN, *body)
            total = sum(
                log_probs[sentence, min(i, table.shape[1] - 1), b, t]
                for i, (b, t) in enumerate(zip(before, tokens, strict=True))
            )
            found.append((total / length**length_penalty, tokens))
    return sorted(found, reverse=True)


def as_tuples(hypotheses, sentence):
    return [
        tuple(np.asarray(hypotheses.tokens[sentence, k, : hypotheses.lengths[sentence, k]]).tolist())
        for k in range(hypotheses.tokens.shape[1])
    ]


@pytest.mark.parametrize("length_penalty", [0.0, 0.6, 1.0])
@pytest.mark.parametrize("seed", [0, 1])
def test_wide_beam_is_exhaustive_search(seed, length_penalty):
    """D2: with a beam that holds every prefix the result is the best of all sequences.

    27 prefixes are live before the last step; the vocabulary must be larger than the beam, so its logits are padded.
    """
    step, table = markov(seed)
    beam_size = 28

    def padded(tokens, state):
        logits, state = step(tokens, state)
        return jnp.pad(logits, ((0, 0), (0, 0), (0, 40)), constant_values=-1e9), state

    found = decoding.beam_search(
        padded,
        start(beam_size),
        beam_size=beam_size,
        length=LENGTH,
        bos=BEGIN,
        eos=END,
        length_penalty=length_penalty,
        exact_stop=True,
    )
    for sentence in range(2):
        expected = enumerate_all(table, sentence, length_penalty=length_penalty)[:5]
        assert as_tuples(found, sentence)[:5] == [tokens for _, tokens in expected]
        np.testing.assert_allclose(found.scores[sentence, :5], [score for score, _ in expected], rtol=1e-5)


def test_width_one_is_greedy():
    """D2: B = 1 equals greedy search."""
    for seed in range(8):
        step, _ = markov(seed)
        greedy = decoding.greedy(step, start(1), length=LENGTH, bos=BEGIN, eos=END)
        beam = decoding.beam_search(step, start(1), beam_size=1, length=LENGTH, bos=BEGIN, eos=END, length_penalty=0.7)
        np.testing.assert_array_equal(greedy.tokens, beam.tokens)
        np.testing.assert_allclose(greedy.log_probs, beam.log_probs, rtol=1e-5)


def test_greedy_takes_the_best_token_each_time():
    """D1."""
    step, table = markov(3)
    found = decoding.greedy(step, start(1), length=LENGTH, bos=BEGIN, eos=END)
    last, expected = BEGIN, []
    for number in range(LENGTH):
        logits = table[0, min(number, 2), last].copy()
        logits[[PAD, BEGIN]] = -np.inf
        last = END if number == LENGTH - 1 else int(logits.argmax())
        expected.append(last)
        if last == END:
            break
    assert as_tuples(found, 0)[0] == tuple(expected)


def test_sentence_does_not_depend_on_its_batch():
    """A sentence decoded beside another gives what it gives alone, with its own limit."""
    step, _ = markov(5)
    options = {"beam_size": 3, "length": LENGTH, "bos": BEGIN, "eos": END}
    together = decoding.beam_search(step, start(3), limit=jnp.array([2, 4]), **options)
    for sentence, limit in ((0, 2), (1, 4)):
        state = jax.tree.map(lambda leaf: leaf[sentence : sentence + 1], start(3))  # noqa: B023
        alone = decoding.beam_search(step, state, limit=jnp.array([limit]), **options)
        np.testing.assert_array_equal(together.tokens[sentence], alone.tokens[0])
        np.testing.assert_array_equal(together.scores[sentence], alone.scores[0])
        assert int(together.lengths[sentence].max()) <= limit


def test_n_best_is_sorted_and_distinct():
    step, _ = markov(6)
    found = decoding.beam_search(step, start(4), beam_size=4, length=LENGTH, bos=BEGIN, eos=END)
    assert (np.diff(np.asarray(found.scores), axis=1) <= 0).all()
    assert all(len(set(as_tuples(found, sentence))) == 4 for sentence in range(2))


def test_pad_and_begin_are_never_chosen():
    def tempting(tokens, state):
        logits = jnp.zeros((*tokens.shape, VOCAB)).at[..., jnp.array([PAD, BEGIN])].set(50.0)
        return logits, state

    for found in (
        decoding.greedy(tempting, start(1), length=3, bos=BEGIN, eos=END),
        decoding.beam_search(tempting, start(2), beam_size=2, length=3, bos=BEGIN, eos=END),
    ):
        inside = np.arange(3) < np.asarray(found.lengths)[..., None]
        assert not np.isin(np.asarray(found.tokens)[inside], [PAD, BEGIN]).any()


def test_one_program_for_equal_shapes():
    step, _ = markov(7)
    traces = []

    @jax.jit
    def search(state):
        traces.append(None)
        return decoding.beam_search(step, state, beam_size=2, length=LENGTH, bos=BEGIN, eos=END)

    search(start(2))
    search(jax.tree.map(lambda leaf: leaf + 0, start(2)))
    assert len(traces) == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"beam_size": 3}, "holds 2 hypotheses"),
        ({"beam_size": 2, "length_penalty": -1.0}, "at least 0"),
        ({"beam_size": 6}, "below the vocabulary"),
    ],
)
def test_bad_requests(options, message):
    step, _ = markov(0)
    state = start(6 if options["beam_size"] == 6 else 2)
    with pytest.raises(ValueError, match=message):
        decoding.beam_search(step, state, length=LENGTH, bos=BEGIN, eos=END, **options)


def test_state_leaves_must_agree():
    step, _ = markov(0)
    with pytest.raises(ValueError, match="leading dims"):
        decoding.greedy(step, {"a": jnp.zeros((2, 1)), "b": jnp.zeros((2, 3))}, length=2, bos=BEGIN, eos=END)


@pytest.mark.parametrize("search", ["greedy", "beam"])
def test_a_sequence_may_begin_with_what_ends_it(search):
    """As BART's do: what is found is what another bos token with the same row finds."""
    step, table = markov(4)
    table[:, :, BEGIN] = table[:, :, END]  # so that both bos alike

    def found(bos):
        # Never chosen in either search, so that both choose among the same tokens.
        barred = lambda tokens, state: (lambda x, s: (x.at[..., BEGIN].set(-1e9), s))(*step(tokens, state))
        options = {"length": LENGTH, "bos": bos, "eos": END}
        if search == "greedy":
            return decoding.greedy(barred, start(1), **options)
        return decoding.beam_search(barred, start(3), beam_size=3, **options)

    same, other = found(END), found(BEGIN)
    np.testing.assert_array_equal(same.tokens, other.tokens)
    np.testing.assert_allclose(same.scores, other.scores, rtol=1e-5)
    assert np.isfinite(np.asarray(same.scores)).all()


def test_an_end_that_pads_is_refused():
    step, _ = markov(0)
    options = {"length": LENGTH, "bos": BEGIN, "eos": END, "pad": END}
    for search in (
        lambda: decoding.greedy(step, start(1), **options),
        lambda: decoding.beam_search(step, start(2), beam_size=2, **options),
    ):
        with pytest.raises(ValueError, match="pad and end must be two tokens, got 2"):
            search()
