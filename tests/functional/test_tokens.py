"""What a token sees, for every combination of padding, packing and positions, against loops over pairs."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer import functional
from jaxformer.functional import Tokens
from jaxformer.functional.tokens import clear_padding, everywhere
from tests.selection import first

IDS = np.array([[4, 5, 6, 7, 8, 9], [9, 8, 7, 6, 5, 4]])
VALID = np.array([[1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 1, 1]], bool)
HOLES = np.array([[0, 1, 1, 0, 1, 1], [1, 0, 1, 1, 1, 0]], bool)
SEGMENTS = np.array([[1, 1, 2, 2, 2, 3], [1, 1, 1, 1, 2, 2]])
RESTARTING = np.array([[0, 1, 0, 1, 2, 0], [0, 1, 2, 3, 0, 1]])
SHUFFLED = np.array([[2, 0, 5, 1, 4, 3], [0, 3, 1, 2, 5, 4]])
CASES = {
    "ids alone": {},
    "right padding": {"valid": VALID},
    "any padding": {"valid": HOLES},
    "positions in order": {"positions": np.arange(6) + np.array([[3], [0]])},
    "positions in another order": {"positions": SHUFFLED},
    "packed": {"segments": SEGMENTS, "positions": RESTARTING},
    "packed without positions": {"segments": SEGMENTS},
    "packed and padded": {"segments": SEGMENTS, "positions": RESTARTING, "valid": VALID},
}
KINDS = {"both": {}, "causal": {"causal": True}, "window": {"causal": True, "window": 2}}


def seen(tokens, causal=False, window=None):
    """Which keys each query sees, one pair at a time."""
    found = np.zeros((*tokens.shape, tokens.shape[1]), bool)
    for b, t, s in np.ndindex(found.shape):
        visible = tokens.valid is None or tokens.valid[b, s]
        if tokens.segments is not None:
            visible &= tokens.segments[b, t] == tokens.segments[b, s]
        orders = [np.arange(tokens.shape[1])]
        if tokens.positions is not None and tokens.segments is None:
            orders.append(tokens.positions[b])
        for order in orders if causal else ():
            visible &= order[s] <= order[t]
            visible &= window is None or order[t] - order[s] < window
        found[b, t, s] = visible
    return found


def dense(tokens, **kind):
    """The mask at the positions of the tokens, as a layer applies it: ``[B, T, T]``."""
    mask = tokens.mask(**kind)
    batch, length = tokens.shape
    if mask is not None and tokens.positions is not None:
        x, places = jnp.zeros((batch, length, 1, 1)), jnp.asarray(tokens.positions)
        mask, _ = functional.at_positions(x, x, query_positions=places, key_positions=places, mask=mask)
    array = True if mask is None else np.asarray(mask.dense(length, length))[:, 0]
    return np.broadcast_to(array, (batch, length, length))


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("fields", CASES.values(), ids=CASES)
@pytest.mark.parametrize("asarray", first([np.asarray, jnp.asarray], np.asarray))
def test_what_a_token_sees(asarray, fields, kind):
    tokens = Tokens(IDS, **fields)
    np.testing.assert_array_equal(dense(jax.tree.map(asarray, tokens), **kind), seen(tokens, **kind))


def test_there_is_no_mask_if_nothing_is_hidden():
    for fields in ({}, {"positions": SHUFFLED}, {"types": SEGMENTS}, {"right_padded": True}):
        assert Tokens(IDS, **fields).mask() is None


@pytest.mark.parametrize("window", [None, 3])
def test_right_padding_needs_no_mask_of_its_own_behind_a_causal_mask(window):
    """All rows share the mask, and every real token sees the same; without the causal mask, padding is hidden."""
    promised, plain = (Tokens(IDS, VALID, right_padded=promise) for promise in (True, False))
    assert promised.mask(causal=True, window=window).dense(6, 6).shape == (1, 1, 6, 6)
    one, other = (dense(tokens, causal=True, window=window) for tokens in (promised, plain))
    np.testing.assert_array_equal(one[VALID], other[VALID])
    np.testing.assert_array_equal(dense(promised), seen(plain))


def test_a_packed_sequence_sees_what_it_sees_alone():
    packed = dense(Tokens(IDS, positions=RESTARTING, segments=SEGMENTS), causal=True)
    alone = dense(Tokens(IDS[:1, 2:5]), causal=True)[0]
    np.testing.assert_array_equal(packed[0, 2:5, 2:5], alone)
    assert packed[0, 2:5].sum() == alone.sum()


def test_it_is_a_pytree():
    """None stays None, the promise of right padding is static, and programs return the same."""
    tokens = Tokens(IDS, VALID, right_padded=True)
    leaves, structure = jax.tree.flatten(tokens)
    assert [leaf.shape for leaf in leaves] == [(2, 6), (2, 6)]
    assert structure != jax.tree.structure(dataclasses.replace(tokens, right_padded=False))
    twice = jax.tree.map(functional.duplicate_rows, jax.tree.map(jnp.asarray, tokens))
    assert (twice.shape, twice.right_padded, twice.positions) == ((4, 6), True, None)
    np.testing.assert_array_equal(twice.ids, np.repeat(IDS, 2, axis=0))

    @jax.jit
    def shift(tokens):
        assert tokens.right_padded
        assert tokens.segments is None
        return dataclasses.replace(tokens, ids=tokens.ids + 1)

    result = shift(tokens)
    np.testing.assert_array_equal(result.ids, IDS + 1)
    np.testing.assert_array_equal(result.valid, VALID)


def test_it_is_printed_as_one_short_line():
    assert repr(Tokens(np.int32(IDS))) == "Tokens(ids=int32[2, 6])"
    tokens = Tokens(np.int32(IDS), VALID, right_padded=True)
    assert repr(tokens) == "Tokens(ids=int32[2, 6], valid=bool[2, 6], right_padded=True)"


def test_ids_stand_for_tokens():
    tokens = Tokens(IDS, VALID)
    assert functional.as_tokens(tokens) is tokens
    made = functional.as_tokens(IDS)
    assert made.ids is IDS
    assert jax.tree.structure(made) == jax.tree.structure(Tokens(IDS))
    assert Tokens(IDS).shape == (2, 6)


KEPT = jnp.array([[True, False], [True, True]])


@pytest.mark.parametrize("features", [(), (3,), (3, 2)])
def test_padding_becomes_0(features):
    x = jnp.full((2, 2, *features), jnp.nan).at[KEPT].set(1.0)
    cleared = clear_padding(x, KEPT)
    assert (cleared == jnp.where(KEPT.reshape(2, 2, *[1] * len(features)), 1, 0)).all()
    assert cleared.dtype == x.dtype
    assert (jax.grad(lambda x: jnp.square(clear_padding(x, KEPT)).sum())(x) == 2 * cleared).all()


def test_everything_is_valid_by_default():
    x = jnp.ones((2, 2))
    assert clear_padding(x, None) is x
    assert everywhere(None, (2, 2)).all()
    assert everywhere(KEPT, (2, 2)) is KEPT


@pytest.mark.parametrize("name", CASES)
def test_cut_off_tokens_are_inside_of_sequences(name):
    """Over many keys, each token that is neither the first nor the last of its sequence is hidden, and no other."""
    tokens = jax.tree.map(jnp.asarray, Tokens(IDS, **CASES[name]))
    cut = jax.jit(jax.vmap(lambda key: functional.token_cutoff(tokens, rate=0.5, key=key).shown))
    hidden = ~np.asarray(cut(jax.random.split(jax.random.key(0), 40)))
    valid = np.ones(IDS.shape, bool) if tokens.valid is None else tokens.valid
    sequence = np.where(valid, 1 if tokens.segments is None else tokens.segments, 0)
    same = np.pad((sequence[:, 1:] == sequence[:, :-1]) & (sequence[:, 1:] > 0), ((0, 0), (1, 1)))
    np.testing.assert_array_equal(hidden.any(0), same[:, 1:] & same[:, :-1])
    np.testing.assert_allclose(hidden[:, hidden.any(0)].mean(), 0.5, atol=0.15)
    assert functional.token_cutoff(tokens, rate=0.5, key=None) is tokens


def test_hidden_tokens_stay_hidden():
    """Of a batch that has some already; SimCut cuts its copies."""
    shown = jnp.arange(6)[None] != jnp.array([[2], [3]])
    tokens = Tokens(jnp.ones((2, 6), jnp.int32), shown=shown)
    cut = functional.token_cutoff(tokens, rate=0.5, key=jax.random.key(0)).shown
    assert not (cut & ~shown).any()
    assert (~cut & shown).any()
    pairs = functional.SimCut(cut=0.5).inputs(tokens, jax.random.key(0)).shown
    assert not (pairs & ~shown).any()
