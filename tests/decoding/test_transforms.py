"""Each transform against direct computation, with the meaning that it has in Hugging Face and CTranslate2."""

import dataclasses

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer import decoding
from jaxformer.decoding.limits import well_formed
from jaxformer.decoding.transforms import ForceEnd
from tests.decoding import searches
from tests.decoding.toys import BEGIN, END, LENGTH, PAD, markov, start

B, K, V, T = 2, 3, 11, 5
SCORES = np.random.default_rng(0).normal(size=(B, K, V)).astype(np.float32) * 2
LENGTHS = np.array([[0, 1, 2], [3, 4, 1]], np.int32)
HISTORY = decoding.History(jnp.zeros((B, K, T), jnp.int32), jnp.asarray(LENGTHS), jnp.arange(B))
SWAPPED = dataclasses.replace(HISTORY, rows=jnp.array([1, 0]))


def apply(transform, scores=SCORES, history=HISTORY):
    """Returns the transform's scores, which must be the same under jit, where its arrays are traced."""
    result = np.asarray(transform(jnp.asarray(scores), history))
    traced = np.asarray(jax.jit(lambda t, s, h: t(s, h))(transform, jnp.asarray(scores), history))
    np.testing.assert_array_equal(result, traced)
    return result


def softmax(scores):
    exp = np.exp(scores - scores.max(-1, keepdims=True), dtype=np.float64)
    return exp / exp.sum(-1, keepdims=True)


def test_temperature_divides():
    transform = decoding.temperature(0.25)
    assert not transform.normalized
    np.testing.assert_allclose(softmax(apply(transform)), softmax(SCORES / 0.25), rtol=1e-5)


@pytest.mark.parametrize("compiled", ["not", "constant", "argument"])
@pytest.mark.parametrize("value", [1e-6, 1e-10, 1e-38, 1e-50])
def test_the_coldest_temperatures_choose_the_most_probable_token(value, compiled):
    """It has all probability, even if the compiler rounds or flushes the quotients; -inf stays forbidden."""
    scores = jnp.asarray(SCORES * 9, jnp.float32).at[..., 2].set(-jnp.inf)
    rule = decoding.temperature(value)
    run = lambda rule: decoding.chain(rule)(scores, HISTORY)
    result = {"not": lambda: run(rule), "constant": jax.jit(lambda: run(rule)), "argument": lambda: jax.jit(run)(rule)}
    expected = np.eye(V)[np.asarray(scores).argmax(-1)]
    np.testing.assert_array_equal(np.exp(result[compiled]()), expected)


def test_the_hottest_temperature_is_uniform():
    """Also if the dtype would round it to infinity; a forbidden token stays forbidden."""
    scores = jnp.asarray(SCORES, jnp.float32).at[..., 2].set(-jnp.inf)
    result = np.exp(decoding.chain(decoding.temperature(1e39))(scores, HISTORY))
    expected = np.where(np.arange(V) == 2, 0, 1 / (V - 1))
    np.testing.assert_allclose(result, np.broadcast_to(expected, result.shape), rtol=1e-6)


@pytest.mark.parametrize("count", [1, 4, V, V + 5])
def test_top_k(count):
    """D5: the `count` highest scores stay unchanged; a count above the vocabulary's size keeps all."""
    transform = decoding.top_k(count)
    assert not transform.normalized
    result = apply(transform)
    for row, kept in zip(SCORES.reshape(-1, V), result.reshape(-1, V), strict=True):
        best = set(np.argsort(-row)[:count].tolist())
        assert set(np.flatnonzero(np.isfinite(kept)).tolist()) == best
        np.testing.assert_array_equal(kept[list(best)], row[list(best)])


def test_top_k_keeps_ties():
    """Only scores below the k-th are removed, as in Hugging Face."""
    scores = np.array([[[1.0, 3.0, 3.0, 3.0, 2.0]]], np.float32)
    assert apply(decoding.top_k(2), scores).tolist() == [[[-np.inf, 3.0, 3.0, 3.0, -np.inf]]]


@pytest.mark.parametrize("mass", [1e-6, 0.3, 0.6, 0.9, 0.999])
def test_top_p(mass):
    """D5: the smallest set of the most probable tokens with at least that mass (nucleus sampling); never empty."""
    transform = decoding.top_p(mass)
    assert not transform.normalized
    result = apply(transform)
    for row, kept in zip(SCORES.reshape(-1, V), result.reshape(-1, V), strict=True):
        order = np.argsort(-row)
        number = int(np.searchsorted(np.cumsum(softmax(row)[order]), mass)) + 1
        assert set(np.flatnonzero(np.isfinite(kept)).tolist()) == set(order[:number].tolist())
        np.testing.assert_array_equal(kept[order[:number]], row[order[:number]])


def test_top_p_of_one_keeps_everything():
    """Also a tail so light that the rounded sum reaches 1 before it."""
    scores = np.concatenate([SCORES, np.full((B, K, 4), -80.0, np.float32)], -1)
    np.testing.assert_array_equal(apply(decoding.top_p(1.0), scores), scores)


def test_top_p_after_top_k_uses_the_remaining_mass():
    """Filters chain: 0.5 and 0.3 of 1 are 0.625 and 0.375 after the third is removed."""
    scores = np.log(np.array([[[0.5, 0.3, 0.2]]], np.float32))
    both = apply(decoding.top_p(0.62), apply(decoding.top_k(2), scores))
    assert np.isfinite(both).tolist() == [[[True, False, False]]]
    assert np.isfinite(apply(decoding.top_p(0.62), scores)).tolist() == [[[True, True, False]]]


@pytest.mark.parametrize("normalized", [True, False])
def test_forbid(normalized):
    transform = decoding.forbid([2, 7], normalized=normalized)
    assert transform.normalized is normalized
    expected = SCORES.copy()
    expected[..., [2, 7]] = -np.inf
    np.testing.assert_array_equal(apply(transform), expected)


def test_min_length_for_all_or_each_sentence():
    """Finished sequences have at least that many tokens with eos, as Hugging Face's min_length counts."""
    for lengths, needed, history in (
        (3, [[3], [3]], HISTORY),
        (jnp.array([2, 5]), [[2], [5]], HISTORY),
        (jnp.array([2, 5]), [[5], [2]], SWAPPED),
    ):
        expected = SCORES.copy()
        expected[..., 4][np.array(needed) > LENGTHS + 1] = -np.inf
        np.testing.assert_array_equal(apply(decoding.min_length(lengths, eos=4), history=history), expected)
    assert decoding.min_length(3, eos=4).normalized
    assert not decoding.min_length(3, eos=4, normalized=False).normalized


@pytest.mark.parametrize("history", [HISTORY, SWAPPED], ids=["in order", "swapped"])
def test_force_end_leaves_only_eos_at_the_limit_of_each_sentence(history):
    limits = np.array([2, 4])
    expected = SCORES.copy()
    at_limit = limits[np.asarray(history.rows)][:, None] <= LENGTHS + 1
    expected[at_limit[..., None] & (np.arange(V) != 4)] = -np.inf
    result = apply(ForceEnd(jnp.asarray(limits), 4), history=history)
    np.testing.assert_array_equal(result, expected)
    assert (result[..., 4] == SCORES[..., 4]).all()  # at its own log-probability


def test_bans_before_normalization_share_the_mass_and_later_ones_lose_it():
    """CTranslate2 and Hugging Face, in this order; without transforms the result is log-softmax."""
    probs = softmax(SCORES)
    kept = np.ones(V, bool)
    kept[[2, 7]] = False
    shared = decoding.chain(decoding.forbid([2, 7], normalized=False))(jnp.asarray(SCORES), HISTORY)
    lost = decoding.chain(decoding.forbid([2, 7]))(jnp.asarray(SCORES), HISTORY)
    np.testing.assert_allclose(np.exp(shared), probs * kept / (probs * kept).sum(-1, keepdims=True), rtol=1e-5)
    np.testing.assert_allclose(np.exp(lost), probs * kept, rtol=1e-5)
    np.testing.assert_allclose(decoding.chain()(jnp.asarray(SCORES), HISTORY), np.log(probs), rtol=1e-5, atol=1e-6)


def test_chain_keeps_the_order_within_each_kind():
    """The order in which the two kinds are mixed has no effect."""
    calls = []

    @dataclasses.dataclass(frozen=True)
    class Noted:
        name: str
        normalized: bool

        def __call__(self, scores, history):
            calls.append((self.name, bool(jnp.allclose(jnp.exp(scores).sum(-1), 1, atol=1e-5))))
            return scores

    decoding.chain(Noted("a", True), Noted("b", False), Noted("c", True), Noted("d", False))(
        jnp.asarray(SCORES), HISTORY
    )
    assert calls == [("b", False), ("d", False), ("a", True), ("c", True)]


def test_a_plain_function_transforms_the_scores_of_the_step():
    """It needs no attribute, and the tokens that it leaves share the probability of those that it removes."""

    def only_first_two(scores, history):
        return jnp.where(jnp.arange(V) < 2, scores, -jnp.inf)

    assert decoding.for_sampling([only_first_two]) == (only_first_two,)
    found = np.exp(decoding.chain(only_first_two)(jnp.asarray(SCORES), HISTORY))
    np.testing.assert_allclose(found[..., :2], softmax(SCORES[..., :2]), rtol=1e-5)
    assert (found[..., 2:] == 0).all()


def test_sampling_filters_apply_after_all_rules():
    """In any order of the arguments: the filter sees the allowed tokens, and the rest sums to 1."""
    hot, few, banned = decoding.temperature(2.0), decoding.top_k(2), decoding.forbid([int(SCORES[0, 0].argmax())])
    expected = apply(decoding.chain(dataclasses.replace(banned, normalized=False), hot, few))
    for given in ((hot, few, banned), (banned, hot, few), (hot, banned, few)):
        found = apply(decoding.chain(*decoding.for_sampling(given)))
        np.testing.assert_allclose(np.exp(found), np.exp(expected), atol=1e-6)
        np.testing.assert_allclose(np.exp(found).sum(-1), 1, rtol=1e-5)
        assert (np.isfinite(found).sum(-1) == 2).all()
    assert decoding.for_sampling((hot, few)) == (hot, few)


def test_chain_computes_in_float32():
    scores = jnp.asarray(SCORES, jnp.bfloat16)
    result = decoding.chain(decoding.temperature(0.5))(scores, HISTORY)
    assert result.dtype == jnp.float32
    np.testing.assert_allclose(np.exp(result).sum(-1), 1, rtol=1e-5)


def test_transforms_are_static_or_traced_arguments():
    """Equal settings are equal keys of a compilation cache; another temperature or mass compiles no new program."""
    assert hash(decoding.forbid([1, 2])) == hash(decoding.forbid([1, 2]))
    assert decoding.top_k(3) == decoding.top_k(3) != decoding.top_k(4)
    run = jax.jit(chex.assert_max_traces(lambda transforms, x: decoding.chain(*transforms)(x, HISTORY), n=1))
    for value, mass in ((0.5, 0.9), (2.0, 0.3)):
        result = run((decoding.temperature(value), decoding.top_p(mass)), jnp.asarray(SCORES))
        np.testing.assert_allclose(np.exp(result).sum(-1), 1, rtol=1e-5)


def test_well_formed_sequences():
    """Pad and bos are never chosen, unless bos is eos; eos, if there is one, is at the limit."""
    limits = jnp.array([2, 9])
    rules = lambda **ids: well_formed((), decoding.Limits(max_length=9, **ids), limits)
    finite = lambda **ids: np.isfinite(np.asarray(decoding.chain(*rules(**ids))(jnp.asarray(SCORES), HISTORY)))
    result = finite(bos=1, eos=2, pad=0)
    assert result[0, 0].tolist() == [False, False, *[True] * (V - 2)]
    assert result[0, 1].tolist() == [False, False, True, *[False] * (V - 3)]
    assert result[1].sum() == 3 * (V - 2)
    assert finite(bos=2, eos=2, pad=0)[1].sum() == 3 * (V - 1)
    assert finite(bos=None, eos=None, pad=-1).all()
    assert finite(bos=None, eos=None, pad=None).all()
    assert finite(bos=1, eos=2, pad=2)[1].sum() == 3 * (V - 1)


@pytest.mark.parametrize("normalized", [True, False])
def test_a_row_without_tokens_has_log_probabilities_of_minus_infinity(normalized):
    """Not NaN, which some devices sort before all numbers."""
    every = decoding.forbid(range(V), normalized=normalized)
    assert (apply(decoding.chain(every)) == -np.inf).all()


def test_draws_obey_all_rules_and_have_their_probability():
    """The most probable token is forbidden, so a filter of one token that ran first would leave none."""
    step, _ = markov(5, shift=9.0)
    rules = (decoding.top_k(1), decoding.min_length(LENGTH, eos=END), decoding.temperature(2.0))
    options = {"max_length": LENGTH, "bos": BEGIN, "eos": END, "pad": PAD}
    result = searches.sample(step, start(4), key=jax.random.key(0), transforms=rules, **options)
    assert (np.asarray(result.lengths) == LENGTH).all()
    np.testing.assert_allclose(result.log_probs, 0, atol=1e-6)
    drawn = decoding.for_sampling((*rules[1:], decoding.forbid([BEGIN, PAD])))
    result = searches.sample(step, start(4), key=jax.random.key(1), transforms=rules[1:], **options)
    again = decoding.forced(step, start(4), result.tokens, result.lengths, bos=BEGIN, transforms=drawn)
    inner = np.asarray(result.token_log_probs)[..., :-1]  # the end is forced
    np.testing.assert_allclose(np.asarray(again.token_log_probs)[..., :-1], inner, rtol=1e-5, atol=1e-6)
    assert (inner < -0.01).any()
