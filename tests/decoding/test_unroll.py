"""Greedy, sampled and forced decoding: one loop with three ways to choose tokens."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer import decoding
from tests.decoding import searches
from tests.decoding.toys import (
    BEGIN,
    END,
    LENGTH,
    PAD,
    VOCAB,
    as_tuples,
    log_softmax,
    markov,
    plain,
    start,
    total_log_prob,
)
from tests.modules.small import int32, quick

IDS = {"bos": BEGIN, "eos": END, "pad": PAD}


def whole(search):
    """A search as one program, which returns NumPy arrays; the other tests call it outside of jit."""

    def run(step, state, *args, **options):
        return jax.device_get(quick(lambda state: search(step, state, *args, **options))(state))

    return run


greedy, sample, forced = map(whole, (searches.greedy, searches.sample, decoding.forced))


def test_greedy_takes_the_best_token_in_each_step():
    """D1."""
    step, table = markov(3)
    result = searches.greedy(step, start(1), max_length=LENGTH, **IDS)
    last, expected = BEGIN, []
    for number in range(LENGTH):
        logits = table[0, min(number, 2), last].copy()
        logits[[PAD, BEGIN]] = -np.inf
        last = END if number == LENGTH - 1 else int(logits.argmax())
        expected.append(last)
        if last == END:
            break
    assert as_tuples(result, 0)[0] == tuple(expected)
    np.testing.assert_allclose(result.log_probs[0, 0], total_log_prob(table, 0, expected), rtol=1e-5)


def test_the_loop_ends_with_the_last_sentence():
    """The buffer has free positions; steps are counted at run time."""
    steps = []

    @plain
    def ends_at_two(tokens, state):
        jax.debug.callback(lambda: steps.append(None))
        logits = jnp.zeros((*tokens.shape, VOCAB)).at[..., 3].set(1.0)
        return jnp.where((state == 1)[..., None], logits.at[..., END].set(2.0), logits), state + 1

    state = decoding.TreeState(jnp.zeros((2, 1), jnp.int32))
    result = searches.greedy(ends_at_two, state, max_length=50, **IDS)
    jax.effects_barrier()
    assert len(steps) == 2
    assert result.lengths.tolist() == [[2], [2]]


def test_without_eos_each_sentence_runs_to_its_limit():
    """No token is forced there, and the usual eos is a token like any other."""
    step, _ = markov(2)
    limits = jnp.array([2, 4])
    result = searches.greedy(step, start(1), max_length=5, max_lengths=limits, bos=BEGIN, eos=None)
    assert result.lengths.tolist() == [[2], [4]]
    assert result.tokens[:, 0, 4].tolist() == [PAD, PAD]
    forbidden = searches.greedy(
        step, start(1), max_length=5, max_lengths=limits, bos=BEGIN, eos=None, transforms=(decoding.forbid([END]),)
    )
    assert END not in np.asarray(forbidden.tokens)


def continued(table, sentence, prefix, *, limit):
    """Greedy search by hand after forced tokens: all tokens, and the log-probability of the chosen ones."""
    log_probs = log_softmax(table)
    tokens, total, last = [], 0.0, BEGIN
    for number in range(limit):
        row = log_probs[sentence, min(number, table.shape[1] - 1), last].copy()
        row[[PAD, BEGIN]] = -np.inf
        if number < len(prefix):
            last = prefix[number]
        else:
            last = END if number == limit - 1 else int(row.argmax())
            total += row[last]
        tokens.append(last)
        if last == END and number >= len(prefix):
            break
    return tuple(tokens), total


def test_prefixes_of_different_lengths():
    """Each sentence continues its own prefix; forced tokens count in lengths and limits, not in log-probabilities."""
    step, table = markov(5, batch=3, steps=6)
    prefix = np.array([[3, 4, END], [5, 0, 0], [0, 0, 0]])  # an eos inside a prefix ends nothing
    lengths = np.array([3, 1, 0])
    result = greedy(
        step,
        start(2, batch=3),
        max_length=6,
        prefix=decoding.Prefix(int32(prefix), int32(lengths)),
        **IDS,
    )
    for sentence in range(3):
        own = prefix[sentence, : lengths[sentence]].tolist()
        tokens, total = continued(table, sentence, own, limit=6)
        assert as_tuples(result, sentence) == [tokens] * 2
        np.testing.assert_allclose(result.log_probs[sentence], total, rtol=1e-5, atol=1e-6)
        assert not np.asarray(result.token_log_probs[sentence, :, : lengths[sentence]]).any()
    assert as_tuples(result, 0)[0][:3] == (3, 4, END)
    assert int(result.lengths[0, 0]) > 3


def test_samples_do_not_depend_on_the_batch():
    """D5: sentences with their keys, alone or together, in another order or with longer ones, have the same draws."""
    step, _ = markov(8, batch=4)
    keys = quick(jax.vmap(jax.random.fold_in, (None, 0)))(jax.random.key(3), np.arange(4))
    run = quick(lambda state, key: searches.sample(step, state, key=key, max_length=8, **IDS))
    together = run(start(3, batch=4), jax.random.key(3))
    assert len({as_tuples(together, s)[k] for s in range(4) for k in range(3)}) > 6
    for sentences in ([2], [3, 0], [1, 1]):
        some = run(start(3, sentences=sentences), keys[np.array(sentences)])
        for row, sentence in enumerate(sentences):
            for name in ("tokens", "lengths", "log_probs", "token_log_probs"):
                np.testing.assert_array_equal(getattr(some, name)[row], getattr(together, name)[sentence])


@pytest.mark.full
def test_a_sample_does_not_depend_on_the_number_of_hypotheses():
    """Draws of the hypotheses of one sentence differ."""
    step, _ = markov(8)
    draw = lambda number, key: searches.sample(step, start(number), key=key, max_length=8, **IDS)
    many, one = draw(6, jax.random.key(0)), draw(1, jax.random.key(0))
    np.testing.assert_array_equal(many.tokens[:, :1], one.tokens)
    assert len(set(as_tuples(many, 0))) > 1
    assert as_tuples(draw(6, jax.random.key(1)), 0) != as_tuples(many, 0)


def test_samples_follow_the_distribution():
    """First and second tokens of 4,000 hypotheses are within five standard errors of the table, at a temperature."""
    step, table = markov(9)
    count, temperature = 4000, 1.7
    rules = (decoding.temperature(temperature),)
    result = sample(
        step, start(count), key=jax.random.key(5), max_length=3, bos=BEGIN, eos=None, pad=-1, transforms=rules
    )
    # bos is never chosen, and what is left shares its mass.
    probs = np.exp(log_softmax(table / temperature))
    probs[..., BEGIN] = 0
    probs /= probs.sum(-1, keepdims=True)
    for sentence in range(2):
        tokens = np.asarray(result.tokens[sentence])
        first = np.bincount(tokens[:, 0], minlength=VOCAB)
        expected = probs[sentence, 0, BEGIN]
        assert (np.abs(first - count * expected) <= 5 * np.sqrt(count * expected * (1 - expected))).all()
        common = int(first.argmax())
        second = np.bincount(tokens[tokens[:, 0] == common, 1], minlength=VOCAB)
        expected, number = probs[sentence, 1, common], first[common]
        assert (np.abs(second - number * expected) <= 5 * np.sqrt(number * expected * (1 - expected))).all()


def test_eos_is_chosen_at_the_limit_even_if_a_transform_has_removed_it():
    """Not the padding, which would be the first in a row that forbids everything."""
    step, _ = markov(4, shift=-50.0)
    options = {"max_length": LENGTH, "max_lengths": int32([2, LENGTH]), **IDS}
    draw = lambda **given: sample(step, start(3), key=jax.random.key(0), **given, **options)
    late, few = (decoding.min_length(LENGTH + 1, eos=END),), (decoding.top_k(2),)
    for result in (greedy(step, start(3), transforms=late, **options), draw(transforms=few)):
        for sentence, limit in enumerate((2, LENGTH)):
            for tokens in as_tuples(result, sentence):
                assert len(tokens) == limit
                assert tokens.index(END) == limit - 1
        assert np.isfinite(result.log_probs).all()
    assert (np.asarray(result.token_log_probs[0, :, 1]) == 0).all()  # not drawn
    scored = draw(transforms=few, forced_end="scored")
    np.testing.assert_array_equal(scored.tokens, result.tokens)
    assert (np.asarray(scored.log_probs) == np.finfo(np.float32).min).all()


def test_samples_continue_a_prefix():
    step, _ = markov(4)
    prefix, allowed = int32([[3, 4], [5, 3]]), decoding.forbid([BEGIN, PAD], normalized=False)
    options = {"max_length": 7, "prefix": prefix, "forced_end": "scored", **IDS}
    result = sample(step, start(4), key=jax.random.key(0), **options)
    np.testing.assert_array_equal(result.tokens[:, :, :2], np.broadcast_to(np.asarray(prefix)[:, None], (2, 4, 2)))
    given = int32(result.tokens), int32(result.lengths)
    again = forced(step, start(4), *given, bos=BEGIN, prefix_lengths=int32([2, 2]), transforms=allowed)
    np.testing.assert_allclose(again.token_log_probs, result.token_log_probs, rtol=1e-6)


def test_forced_scores_are_sums_over_the_table():
    """For any tokens, including pad and bos, and every length down to 0."""
    step, table = markov(0, steps=5)
    tokens = np.random.default_rng(1).integers(0, VOCAB, (2, 3, 5))
    lengths = np.array([[5, 3, 1], [0, 2, 4]])
    result = forced(step, start(3), int32(tokens), int32(lengths), bos=BEGIN)
    unscored = forced(step, start(3), int32(tokens), int32(lengths), bos=BEGIN, prefix_lengths=int32([1, 2]))
    read_only = forced(step, start(3), int32(tokens), int32(lengths), bos=None)
    for sentence in range(2):
        for k in range(3):
            given = tokens[sentence, k, : lengths[sentence, k]].tolist()
            total = total_log_prob(table, sentence, given)
            np.testing.assert_allclose(result.log_probs[sentence, k], total, rtol=1e-5)
            np.testing.assert_allclose(result.token_log_probs[sentence, k].sum(), total, rtol=1e-5)
            assert as_tuples(result, sentence)[k] == tuple(given)
            head = total_log_prob(table, sentence, given[: sentence + 1])
            np.testing.assert_allclose(unscored.log_probs[sentence, k], total - head, rtol=1e-4, atol=1e-5)
            if given:
                rest = total_log_prob(table, sentence, given[1:], before=given[0])
                np.testing.assert_allclose(read_only.log_probs[sentence, k], rest, rtol=1e-5, atol=1e-6)
    assert not np.asarray(result.tokens[1, 0]).any()


def test_unroll_with_a_custom_choice():
    """The second best token in each step; it sees the scores after the rules, and no other rule applies."""
    step, table = markov(6)
    buffer = decoding.History(jnp.zeros((2, 1, 3), jnp.int32), jnp.zeros((2, 1), jnp.int32), jnp.arange(2))
    second = lambda log_probs, history: jax.lax.top_k(log_probs, 2)[1][..., 1]
    result = decoding.unroll(step, start(1), second, buffer, bos=BEGIN, eos=None, max_lengths=jnp.full((2, 1), 3))
    last = BEGIN
    for number in range(3):
        last = int(np.argsort(-table[0, number, last])[1])
        assert int(result.tokens[0, 0, number]) == last


@pytest.mark.full
def test_64_bits_change_nothing():
    """NumPy's integers stay 64 bits wide there; results are int32 and float32 as usual."""

    def run():
        step, _ = markov(7)
        numbers = {"prefix": decoding.Prefix(np.array([[3, 4], [4, 3]]), np.array([2, 1]))}
        options = {"max_length": 5, "max_lengths": np.array([5, 4]), **IDS}
        sampled = searches.sample(step, start(2), key=jax.random.key(0), **numbers, **options)
        beam = searches.beam_search(step, start(2), beam_size=2, **options)
        arrays = np.asarray(beam.tokens, np.int64), np.asarray(beam.lengths, np.int64)
        return sampled, beam, decoding.forced(step, start(2), *arrays, bos=BEGIN)

    narrow = run()
    with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):
        chex.assert_trees_all_equal(narrow, run(), strict=True)  # dtypes, too


def test_one_program_for_every_prefix_key_and_limit():
    step, _ = markov(7)

    @jax.jit
    @chex.assert_max_traces(n=1)
    def run(key, prefix, prefix_lengths, max_lengths):
        options = {"prefix": decoding.Prefix(prefix, prefix_lengths), "max_lengths": max_lengths, **IDS}
        return searches.sample(step, start(2), key=key, max_length=6, **options)

    for seed, lengths in ((0, [2, 0]), (1, [0, 1])):
        result = run(jax.random.key(seed), jnp.array([[3, 4], [4, 3]]), jnp.array(lengths), jnp.array([6, 5]))
        assert (np.asarray(result.lengths) <= [[6], [5]]).all()


def test_seeds_raw_keys_and_single_transforms():
    """A seed and a raw key draw as their ``jax.random.key``, and one transform as a tuple of it."""
    (step, _), rule = markov(8), decoding.temperature(0.9)
    draw = lambda key, rules, by=sample: by(step, start(3), key=key, max_length=6, transforms=rules, **IDS).tokens
    expected = quick(lambda seed: draw(seed, (rule,), searches.sample))(5)
    for key in (jax.random.key(5), np.int64(5), np.array(5), jax.random.PRNGKey(5)):
        np.testing.assert_array_equal(draw(key, rule), expected)
    np.testing.assert_array_equal(draw(5, decoding.chain(rule)), expected)
    raw = jax.random.split(jax.random.PRNGKey(1), 2)
    np.testing.assert_array_equal(draw(raw, rule), draw(jax.random.wrap_key_data(raw), rule))
