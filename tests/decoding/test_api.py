"""The contract of decoding states, the best scores and their indices, and what searches refuse."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer import decoding, models, pure
from jaxformer.decoding.api import BLOCK, first_highest, top_scores
from tests.decoding import searches
from tests.decoding.toys import BEGIN, END, LENGTH, PAD, VOCAB, as_tuples, markov, plain, start
from tests.modules.small import drawn, int32, quick
from tests.selection import first


def tree_state():
    values = jnp.arange(12.0).reshape(2, 3, 2)
    return decoding.TreeState({"values": values, "position": values[..., 0]})


def test_tree_state_reorders_every_leaf():
    parents = np.array([[2, 0, 0], [1, 1, 2]])
    state = tree_state()
    result = state.reorder(jnp.asarray(parents)).tree
    for name, leaf in state.tree.items():
        for sentence in range(2):
            np.testing.assert_array_equal(result[name][sentence], leaf[sentence][parents[sentence]])


def test_tree_state_takes_sentences():
    """Sentences may be taken in any order and number; the shape follows."""
    state = tree_state()
    result = state.take(jnp.array([1, 1, 0]))
    assert (state.shape, result.shape) == ((2, 3), (3, 3))
    np.testing.assert_array_equal(result.tree["values"], state.tree["values"][np.array([1, 1, 0])])


STEP, _ = markov(0)
PREFIX = jnp.zeros((2, 2), jnp.int32)


def scoring(scores):
    return lambda tokens, state: (scores, state)


def transforming(transform, normalized=False):
    """A transform that is a plain function, before or after the normalization of scores."""
    function = lambda scores, history: transform(scores)
    function.normalized = normalized
    return {"transforms": [function]}


def run(name, step=STEP, state=None, **options):
    """Runs a search of two sentences with two hypotheses each, without computing anything."""
    given = {"max_length": LENGTH, "bos": BEGIN, "eos": END, "pad": PAD} | options
    search = {"beam": functools.partial(searches.beam_search, beam_size=given.pop("beam_size", 2))}
    search |= {"greedy": searches.greedy, "sample": functools.partial(searches.sample, key=given.pop("key", 0))}
    return jax.eval_shape(lambda state: search[name](step, state, **given), start(2) if state is None else state)


def unrolled(choose):
    begun = decoding.History(int32(np.zeros((2, 2, 3))), int32(np.zeros((2, 2))), int32(np.arange(2)))
    ends = {"bos": BEGIN, "eos": END, "max_lengths": int32(np.full((2, 2), 3))}
    return decoding.unroll(STEP, start(2), choose, begun, **ends)


def reranked(scores):
    two = decoding.Hypotheses(jnp.array([[[5], [6]]]), jnp.ones((1, 2)), *jnp.zeros((2, 1, 2)), jnp.zeros((1, 2, 1)))
    return decoding.rerank(two, scores)


def leaves(tree):
    return lambda: searches.greedy(STEP, decoding.TreeState(tree), max_length=2, bos=BEGIN, eos=END)


BARE = r"dict lacks shape, reorder, take\. Wrap a pytree .* decoding\.TreeState"
OTHER_SCORES = r"floats of the shape that it was given, \(2, 2, 6\), got "
FIRST_TOKEN = "without bos, the first token must come from a prefix"
REFUSALS = {
    # What a model is: its state, and its scores.
    "leaves of two shapes": (leaves({"a": jnp.zeros((2, 1)), "b": jnp.zeros((2, 3))}), "leading dims"),
    "leaf of one dimension": (leaves({"a": jnp.zeros(2)}), "leading dims"),
    "leaf is a number": (leaves({"a": 0}), "leading dims"),
    "no leaf": (leaves({}), "leading dims"),
    "bare pytree, greedy": (lambda: run("greedy", state=start(2).tree), BARE),
    "bare pytree, beam": (lambda: run("beam", state=start(2).tree), BARE),
    "bare pytree, sample": (lambda: run("sample", state=start(2).tree), BARE),
    "bare pytree, forced": (
        lambda: decoding.forced(STEP, start(2).tree, jnp.zeros((2, 2, 1), int), jnp.ones((2, 2), int), bos=BEGIN),
        BARE,
    ),
    "bare pytree, returned": (
        lambda: run("beam", lambda tokens, state: (jnp.zeros((*tokens.shape, VOCAB)), state.tree)),
        r"dict lacks shape, reorder, take\. Wrap a pytree",
    ),
    # Scores [B, V] were taken for those of K hypotheses, without an error if K was B or 1.
    "scores [B, V]": (lambda: run("beam", scoring(jnp.zeros((2, 5)))), r"\[B, K, V\] with B, K = \(2, 2\); got \(2, 5"),
    "state first": (lambda: run("beam", lambda tokens, state: (state, 0)), r"with B, K = \(2, 2\); got \(2, 2"),
    # Fewer scores than tokens were searched as if the vocabulary were smaller.
    "fewer tokens": (
        lambda: run("greedy", **transforming(lambda x: x[..., :3])),
        rf"{OTHER_SCORES}float32 \(2, 2, 3\)",
    ),
    "fewer hypotheses": (
        lambda: run("beam", **transforming(lambda x: x[:, :1], True)),
        rf"{OTHER_SCORES}float32 \(2, 1, 6\)",
    ),
    "Boolean": (lambda: run("beam", **transforming(lambda x: x > 0)), rf"{OTHER_SCORES}bool \(2, 2, 6\)"),
    "no scores": (lambda: run("greedy", **transforming(lambda x: None, True)), f"{OTHER_SCORES}None NoneType"),
    # One token, or one score, would stand for those of all hypotheses.
    "one choice": (
        lambda: unrolled(lambda log_probs, history: log_probs.argmax(-1)[:, :1]),
        r"a token for each hypothesis, \(2, 2\), got \(2, 1\)",
    ),
    "one penalty": (
        lambda: run("beam", length_penalty=lambda log_probs, lengths, *, ended: log_probs.mean(-1, keepdims=True)),
        r"a length penalty must return floats .*\(2, 4\), got .*\(2, 1\)",
    ),
    "a new score for one": (
        lambda: reranked(jnp.array([[0.25]])),
        r"the shape of the hypotheses, \(1, 2\), got \(1, 1\)",
    ),
    # Where sequences begin and end.
    "eos beyond, greedy": (lambda: run("greedy", eos=6), r"eos must be in \[0, V = 6\), or None .*, got 6"),
    "eos beyond, beam": (lambda: run("beam", eos=[END, 5, -1]), r"eos must be in \[0, V = 6\), .* got -1"),
    "several bos": (lambda: run("greedy", bos=jnp.array([1, 2])), r"bos must be one token .* array of shape \[2\]"),
    "negative bos": (lambda: run("greedy", bos=-1), "bos must be at least 0, got -1"),
    "no bos": (lambda: run("greedy", bos=None), FIRST_TOKEN),
    "empty prefix": (lambda: run("greedy", bos=None, prefix=PREFIX[:, :0]), FIRST_TOKEN),
    "prefix too long": (lambda: run("greedy", prefix=jnp.zeros((2, 5), int)), r"most max_length = 4\], got \(2, 5\)"),
    "prefix of other rows": (lambda: run("greedy", prefix=jnp.zeros((3, 2), int)), r"\[B = 2, .* got \(3, 2\)"),
    "prefix of one row": (lambda: run("greedy", prefix=PREFIX[0]), r"prefix must be \[B, P\], got shape \[2\]"),
    "forced_end": (
        lambda: run("beam", forced_end="always"),
        "forced_end must be one of scored, free, never, got 'always'",
    ),
    "max_length": (lambda: run("beam", max_length=0), "max_length must be at least 1, got 0"),
    "capacities": (
        lambda: run("greedy", capacities=(2, 4)),
        r"must ascend from that of the state, None, got \[2, 4\]",
    ),
    "sequences of other rows": (
        lambda: decoding.forced(STEP, start(1), jnp.zeros((2, 3, 4), int), jnp.zeros((2, 3), int), bos=BEGIN),
        r"must begin \(2, 1\) like the state",
    ),
    # The settings of a search.
    "keys of three rows": (lambda: run("sample", key=jax.random.split(jax.random.key(0), 3)), "or 2 keys, one per row"),
    "raw numbers": (lambda: run("sample", key=jnp.zeros(2, jnp.int32)), r"one jax\.random\.key, or 2 keys"),
    "beam_size": (lambda: run("beam", beam_size=3), "holds 2 hypotheses"),
    "beam too wide": (
        lambda: run(
            "beam",
            lambda tokens, state: (jnp.zeros((*tokens.shape, VOCAB)), state),
            decoding.TreeState(jax.ShapeDtypeStruct((1, 2**29), jnp.float32)),
            beam_size=2**29,
        ),
        r"^beam_size times the vocabulary must be below 2\*\*31, got 536870912 x 6",
    ),
    "penalty": (lambda: run("beam", length_penalty=-1.0), "length_penalty must be at least 0 and finite, got -1.0"),
    "penalty NaN": (lambda: decoding.LengthPenalty(float("nan")), "at least 0 and finite, got nan"),
    "GNMT": (lambda: decoding.GNMTPenalty(-1), "length_penalty must be at least 0 and finite, got -1"),
    "coverage": (
        lambda: decoding.CoverageState.start(start(1), jnp.ones((2, 3), bool), penalty=-0.5),
        r"coverage_penalty must be at least 0 and finite, got -0\.5",
    ),
    "stopping": (lambda: run("beam", stopping="never"), "must be first, now, limit or a Patience, got 'never'"),
    "patience": (lambda: decoding.Patience(0), "patience must be positive and finite, got 0"),
    "patience infinite": (lambda: decoding.Patience(float("inf")), "patience must be positive and finite, got inf"),
    "trace": (lambda: run("beam", trace=decoding.BeamTrace()), "runs step by step; call it outside"),
    "temperature": (lambda: decoding.temperature(0.0), "temperature must be positive and finite, got 0.0"),
    "temperature NaN": (lambda: decoding.temperature(float("nan")), "positive and finite, got nan"),
    "temperature infinite": (lambda: decoding.temperature(float("inf")), "positive and finite, got inf"),
    "top_k": (lambda: decoding.top_k(0), "top_k must be at least 1, got 0"),
    "top_p": (lambda: decoding.top_p(0.0), r"top_p must be in \(0, 1\], got 0.0"),
    "top_p above 1": (lambda: decoding.top_p(1.5), r"top_p must be in \(0, 1\], got 1.5"),
    "min_p": (lambda: decoding.min_p(-0.1), r"min_p must be in \[0, 1\], got -0.1"),
    "forbid": (lambda: decoding.forbid([3, -1]), r"must not be negative, got \[-1, 3\]"),
    "no_repeat_ngram": (lambda: decoding.no_repeat_ngram(0), "no_repeat_ngram must be at least 1, got 0"),
    "repetition_penalty": (lambda: decoding.repetition_penalty(-1), "must be above 0 and finite, got -1"),
    "no sequences": (lambda: decoding.forbid_sequences([]), "at least one token each, and there must be one; got none"),
    "empty sequence": (lambda: decoding.forbid_sequences([[1], []]), "at least one token each"),
    "negative sequence": (lambda: decoding.forbid_sequences([[1, -2]]), r"must not be negative, got \[\[1, -2\]\]"),
    "shortlists of fewer rows": (
        lambda: run("greedy", transforms=decoding.shortlist(jnp.ones((3, 1), int)[:0])),
        "a transform has values for 0 rows, but the batch has 2",
    ),
    "lengths of fewer rows": (
        lambda: run("greedy", transforms=decoding.min_length(jnp.array([1]), eos=0)),
        "a transform has values for 1 rows, but the batch has 2",
    ),
    "no model": (lambda: decoding.ensemble([]), "at least one model, got none"),
    "average": (lambda: decoding.ensemble([STEP], average="sum"), "must be one of log, probability, got 'sum'"),
    "average of stacked": (
        lambda: decoding.stacked_ensemble(lambda *_: None, jnp.zeros((1, VOCAB)), average="sum"),
        "average must be one of log, probability, got 'sum'",
    ),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_refusals(name):
    call, message = REFUSALS[name]
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize("asarray", [list, np.asarray, jnp.asarray])
def test_eos_may_be_a_list(asarray):
    """As in a generation_config.json; or an array."""
    assert run("greedy", eos=asarray([END, 5])).tokens.shape == (2, 2, LENGTH)
    assert decoding.Limits(max_length=3, bos=1, eos=asarray([END, 5])).eos == (END, 5)


@pytest.mark.full
def test_without_a_pad_every_token_may_be_chosen():
    """Token 0 then fills the rest; a given pad is never chosen."""
    scores = jnp.zeros(VOCAB).at[0].set(9.0)
    step = plain(lambda tokens, state: (jnp.broadcast_to(scores, (*tokens.shape, VOCAB)), state))
    state = decoding.TreeState(jnp.zeros((1, 1)))
    given = {"max_length": 3, "bos": BEGIN, "eos": None}
    for search in (
        functools.partial(searches.greedy, step, state, **given),
        functools.partial(searches.beam_search, step, state, beam_size=1, **given),
        functools.partial(searches.sample, step, state, key=3, **given),
    ):
        assert search().tokens.tolist() == [[[0, 0, 0]]]
        assert 0 not in search(pad=0).tokens.tolist()[0][0]


@pytest.mark.full
def test_a_state_with_too_little_room_is_refused():
    """A search reads `bos` and all tokens but the last."""
    config = models.LanguageModelConfig(VOCAB, d_model=4, num_heads=1, d_ff=4, num_layers=1, dropout=0.0)
    net = pure(models.LanguageModel, config)
    model = net.bind(drawn(net.shapes))
    context, state = model.start(batch_size=1, beam_size=1, length=3)
    step = lambda tokens, state: model.step(tokens, state, context)
    both = lambda tokens, state: (step(tokens, state.states[0])[0], state)
    several = decoding.EnsembleState((state, decoding.TreeState(jnp.zeros((1, 1)))))
    stacked = decoding.StackedState(jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), state))
    covered = decoding.CoverageState.start(state, jnp.ones((1, 2), bool), penalty=0.5)
    ids = {"bos": BEGIN, "eos": END}
    message = "max_length=4 reads up to 4 tokens, but the state has room for 3; start the model with length=4"
    for search in (
        lambda: searches.greedy(step, state, max_length=4, **ids),
        lambda: searches.greedy(both, several, max_length=4, **ids),
        lambda: searches.greedy(step, stacked, max_length=4, **ids),
        lambda: searches.beam_search(step, covered, beam_size=1, max_length=4, **ids),
        lambda: decoding.forced(step, state, jnp.ones((1, 1, 4), jnp.int32), jnp.full((1, 1), 4), bos=BEGIN),
    ):
        with pytest.raises(ValueError, match=message):
            search()
    found = searches.greedy(step, state, max_length=4, bos=None, eos=None, prefix=jnp.ones((1, 1), jnp.int32))
    assert np.isfinite(np.asarray(found.log_probs)).all()


@pytest.mark.parametrize("name", first(["greedy", "sample", "beam"], "beam"))
def test_any_of_several_eos_tokens_ends_a_sequence(name):
    """As if sequences without an end were cut there; at the limit, one of them is forced."""
    run = {
        "greedy": lambda **given: searches.greedy(step, start(1), **given),
        "sample": lambda **given: searches.sample(step, start(3), key=jax.random.key(1), **given),
        "beam": lambda **given: searches.beam_search(step, start(3), beam_size=3, **given),
    }[name]
    search = lambda **given: quick(lambda: run(**given))()
    (step, _), ends, given = markov(5), (END, 4), {"max_length": LENGTH, "bos": BEGIN, "pad": PAD}
    whole, found = search(eos=None, **given), search(eos=ends, forced_end="never", **given)
    for sentence in range(2):
        cut = []
        for tokens in as_tuples(whole, sentence):
            first = min((tokens.index(end) for end in ends if end in tokens), default=LENGTH)
            cut.append(tokens[: first + 1])
        assert name == "beam" or as_tuples(found, sentence) == cut
        for tokens in as_tuples(found, sentence):
            assert not {*tokens[:-1]} & {*ends}
            assert len(tokens) == LENGTH or tokens[-1] in ends
        assert all(tokens[-1] in ends for tokens in as_tuples(search(eos=ends, **given), sentence))
    late = search(eos=ends, transforms=(decoding.min_length(LENGTH, eos=ends),), **given)
    assert (late.lengths == LENGTH).all()
    chex.assert_trees_all_equal(search(eos=(END,), **given), search(eos=END, **given))


def test_one_hypothesis_is_never_reordered():
    """A beam of one moves no cache: its parent is always itself."""

    class Fixed(decoding.TreeState):
        def reorder(self, parents):
            raise AssertionError("a copy of everything")

    jax.tree_util.register_dataclass(Fixed, ["tree"], [])
    step, _ = markov(5)
    given = {"max_length": LENGTH, "bos": BEGIN, "eos": END, "pad": PAD}
    fixed = lambda tokens, state: (lambda scores, new: (scores, Fixed(new.tree)))(*step(tokens, state))
    found = searches.beam_search(fixed, Fixed(start(1).tree), beam_size=1, **given)
    np.testing.assert_array_equal(found.tokens, searches.greedy(step, start(1), **given).tokens)


def scores_with_ties(size):
    draw = np.random.default_rng(size)
    found = draw.integers(0, max(2, size // 50), (40, size)).astype(np.float32)
    found[draw.random(found.shape) < 0.3] = -np.inf
    found[:2] = -np.inf
    found[2:4] = 1.0
    return jnp.asarray(found)


@pytest.mark.full
@pytest.mark.parametrize("size", first([1, 5, 40 * BLOCK, 40 * BLOCK + 1, 41 * BLOCK - 1], 1, 40 * BLOCK + 1))
def test_best_equals_argmax_and_top_k(size):
    scores = scores_with_ties(size)
    np.testing.assert_array_equal(first_highest(scores), scores.argmax(-1))
    for count in sorted({1, min(8, size), min(300, size)}):
        found, expected = (f(scores.reshape(4, 10, size), count) for f in (top_scores, jax.lax.top_k))
        chex.assert_trees_all_equal([*found], [*expected])


def test_a_score_that_is_nan_gives_an_index_in_range():
    scores = jnp.array([[1.0, jnp.nan, 2.0], [jnp.nan] * 3])
    assert set(first_highest(scores).tolist()) <= {0, 1, 2}
