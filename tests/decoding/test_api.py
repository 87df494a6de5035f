"""The contract of decoding states."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer import decoding, models, pure
from tests.decoding import searches
from tests.decoding.toys import BEGIN, END, LENGTH, PAD, VOCAB, as_tuples, markov, plain, start
from tests.modules.small import drawn, int32
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


def test_state_leaves_must_agree():
    step, _ = markov(0)
    for tree in ({"a": jnp.zeros((2, 1)), "b": jnp.zeros((2, 3))}, {"a": jnp.zeros(2)}, {"a": 0}, {}):
        with pytest.raises(ValueError, match="leading dims"):
            searches.greedy(step, decoding.TreeState(tree), max_length=2, bos=BEGIN, eos=END)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"eos": 6}, r"eos must be in \[0, V = 6\), or None if no token ends a sequence, got 6"),
        ({"eos": [END, -1]}, r"eos must be in \[0, V = 6\), .* got -1"),
        ({"bos": jnp.array([1, 2])}, r"bos must be one token for all sequences, got an array of shape \[2\]"),
    ],
    ids=["beyond", "negative", "several"],
)
@pytest.mark.parametrize("search", [searches.greedy, functools.partial(searches.beam_search, beam_size=1)])
def test_invalid_eos_and_bos_are_refused(search, options, message):
    step, _ = markov(0)
    run = lambda state, **given: search(step, state, max_length=2, **{"bos": BEGIN, "eos": END} | given)
    jax.eval_shape(functools.partial(run, eos=[END, 5]), start(1))  # a list as in a generation_config.json
    with pytest.raises(ValueError, match=message):
        jax.eval_shape(functools.partial(run, **options), start(1))


def test_a_beam_with_too_many_choices_is_refused():
    step = lambda tokens, state: (jnp.zeros((*tokens.shape, VOCAB)), state)
    state = decoding.TreeState(jax.ShapeDtypeStruct((1, 2**29), jnp.float32))
    search = functools.partial(searches.beam_search, step, beam_size=2**29, max_length=2, bos=BEGIN, eos=END)
    with pytest.raises(ValueError, match=r"^beam_size times the vocabulary must be below 2\*\*31, got 536870912 x 6"):
        jax.eval_shape(search, state)


@pytest.mark.parametrize("search", [searches.greedy, searches.beam_search, searches.sample, decoding.forced])
def test_a_bare_pytree_is_refused_as_a_state(search):
    step, _ = markov(0)
    tree = start(2).tree
    needed = {
        searches.greedy: {"max_length": 2, "eos": END},
        searches.beam_search: {"max_length": 2, "eos": END, "beam_size": 2},
        searches.sample: {"max_length": 2, "eos": END, "key": None},
        decoding.forced: {"tokens": jnp.zeros((2, 2, 1), jnp.int32), "lengths": jnp.ones((2, 2), jnp.int32)},
    }
    with pytest.raises(ValueError, match=r"dict lacks shape, reorder, take\. Wrap a pytree .* decoding\.TreeState"):
        search(step, tree, bos=BEGIN, **needed[search])


def test_a_step_that_returns_a_bare_pytree_is_refused():
    step = lambda tokens, state: (jnp.zeros((*tokens.shape, VOCAB)), state.tree)
    search = functools.partial(searches.beam_search, step, beam_size=2, max_length=2, bos=BEGIN, eos=END)
    with pytest.raises(ValueError, match=r"dict lacks shape, reorder, take\. Wrap a pytree"):
        jax.eval_shape(search, start(2))


@pytest.mark.full
def test_without_a_pad_every_token_may_be_chosen():
    """Token 0 then fills the rest; a given pad is never chosen."""
    scores = jnp.zeros(VOCAB).at[0].set(9.0)
    step = plain(lambda tokens, state: (jnp.broadcast_to(scores, (*tokens.shape, VOCAB)), state))
    state = decoding.TreeState(jnp.zeros((1, 1)))
    given = {"max_length": 3, "bos": BEGIN, "eos": None}
    runs = {
        "greedy": functools.partial(searches.greedy, step, state, **given),
        "beam": functools.partial(searches.beam_search, step, state, beam_size=1, **given),
        "sample": functools.partial(searches.sample, step, state, key=3, **given),
    }
    for search in runs.values():
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
    search = {
        "greedy": lambda **given: searches.greedy(step, start(1), **given),
        "sample": lambda **given: searches.sample(step, start(3), key=jax.random.key(1), **given),
        "beam": lambda **given: searches.beam_search(step, start(3), beam_size=3, **given),
    }[name]
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


def test_a_choice_that_is_not_one_token_for_each_hypothesis_is_refused():
    """One token would stand for those of all hypotheses."""
    step, _ = markov(0)
    begun = decoding.History(int32(np.zeros((2, 2, 3))), int32(np.zeros((2, 2))), int32(np.arange(2)))
    choose = lambda log_probs, history: log_probs.argmax(-1)[:, :1]
    with pytest.raises(ValueError, match=r"a token for each hypothesis, \(2, 2\), got \(2, 1\)"):
        decoding.unroll(step, start(2), choose, begun, bos=BEGIN, eos=END, max_lengths=int32(np.full((2, 2), 3)))
