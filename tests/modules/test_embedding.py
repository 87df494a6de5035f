"""Token and position tables, their sum with dropout, and images as patches."""

import chex
import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest

from jaxformer import functional, modules
from jaxformer.functional import Tokens
from tests.modules.small import built, int32, normal

D = 8


def test_embedding():
    """Looked up times sqrt(D) on the way in; on the way out, a head reads the plain table."""
    net, params = built(lambda rngs: modules.Embedding(11, D, rngs=rngs))
    table = np.asarray(params["table"], np.float64)
    tokens = int32([[3, 0], [10, 3]])
    np.testing.assert_allclose(net.apply(params, tokens), np.sqrt(D) * table[tokens], rtol=1e-6)
    assert net.apply(params, tokens, dtype=jnp.dtype("bfloat16")).dtype == jnp.bfloat16
    x = normal(2, 3, D)
    np.testing.assert_allclose(modules.Head(params["table"]).logits(x), x @ table.T, atol=1e-5)
    fresh = built(lambda rngs: modules.Embedding(400, 64, rngs=rngs))[0].init(jax.random.key(0))["table"]
    np.testing.assert_allclose(np.std(fresh), 1 / 8, rtol=0.02)  # so that embedded tokens have unit variance


def test_learned_positions():
    net, params = built(lambda rngs: modules.LearnedPositions(4, D, rngs=rngs))
    found = net.apply(params, int32([[0, 3]]), 4)
    np.testing.assert_array_equal(found, params["table"][jnp.array([[0, 3]])])
    shifted, params = built(lambda rngs: modules.LearnedPositions(4, D, offset=2, rngs=rngs))
    found = shifted.apply(params, int32([[0, 3]]), 4)
    np.testing.assert_array_equal(found, params["table"][jnp.array([[2, 5]])])


def test_an_offset_of_positions_of_few_bits():
    """Position 255 had the vector of position -1."""
    learned, params = built(lambda rngs: modules.LearnedPositions(256, D, offset=2, rngs=rngs))
    for given in (np.array([[255]], np.uint8), jnp.array([[255]], jnp.uint8)):
        np.testing.assert_array_equal(learned.apply(params, given, 256)[0, 0], params["table"][257])
        found = modules.SinusoidalPositions(D, offset=2)(given, 256)
        np.testing.assert_allclose(found, functional.sinusoidal(np.array([[257]]), dim=D), atol=1e-4)


def embeddings(learned, dropout=0.0, dtype="float32"):
    def make(rngs):
        tokens = modules.Embedding(11, D, rngs=rngs)
        positions = modules.LearnedPositions(4, D, rngs=rngs) if learned else modules.SinusoidalPositions(D)
        return modules.Embeddings(tokens, positions, dropout=dropout, dtype=dtype)

    return built(make)


@pytest.mark.parametrize("learned", [True, False])
def test_embeddings_are_the_sum_of_tokens_and_positions(learned):
    net, params = embeddings(learned)
    tokens = Tokens(int32([[3, 0, 5], [10, 3, 3]]))
    offset = params["positions"]["table"][:3] if learned else functional.sinusoidal(jnp.arange(3), dim=D)
    expected = np.sqrt(D) * np.asarray(params["tokens"]["table"])[tokens.ids] + np.asarray(offset)
    np.testing.assert_allclose(net.apply(params, tokens), expected, atol=1e-5)
    assert embeddings(learned, dtype="bfloat16")[0].apply(params, tokens).dtype == jnp.bfloat16


def test_a_token_that_is_not_shown_is_its_position_alone():
    """The vector of its token is not read: nothing of it is in the sum, and no gradient reaches it."""
    net, params = embeddings(True)
    tokens = Tokens(int32([[3, 0, 5]]), shown=jnp.array([[True, False, True]]))
    found, backward = jax.vjp(lambda params: net.net.apply(params, tokens), params)
    np.testing.assert_array_equal(found[0, 1], params["positions"]["table"][1])
    whole = net.apply(params, Tokens(tokens.ids))
    np.testing.assert_array_equal(found[0, ::2], whole[0, ::2])
    (slopes,) = backward(jnp.ones_like(found))
    assert np.flatnonzero(np.asarray(slopes["tokens"]["table"]).any(1)).tolist() == [3, 5]


@pytest.mark.parametrize("learned", [True, False])
def test_a_step_of_embeddings_equals_that_position_of_the_sequence(learned):
    """Each hypothesis has another position."""
    net, params = embeddings(learned)
    tokens, positions = np.array([[3, 0, 5, 7], [10, 3, 3, 1]]), np.array([[0, 3], [2, 2]])
    whole = np.asarray(net.apply(params, Tokens(int32(tokens))))
    chosen = np.take_along_axis(tokens, positions, 1)
    step = net.call(modules.Embeddings.step, params, int32(chosen)[..., None], int32(positions)[..., None])
    np.testing.assert_allclose(step, np.take_along_axis(whole, positions[..., None], 1), atol=1e-5)


def test_embeddings_drop_with_a_key():
    net, params = embeddings(True, dropout=0.5)
    tokens, key = Tokens(int32([[3, 0, 5]])), jax.random.key(0)
    plain = net.apply(params, tokens)
    np.testing.assert_allclose(
        net.apply(params, tokens, key=key), functional.dropout(plain, rate=0.5, key=key), atol=1e-6
    )


def test_embeddings_check_given_positions():
    """Of a table, unless they are traced: then the last row stands for those beyond it, as the docstring says."""
    tokens = Tokens(int32([[3, 3]]), positions=int32([[3, 4]]))
    net, params = embeddings(True)
    module = net.net.bind(params)
    with pytest.raises(ValueError, match="position 4 has no learned vector: the table covers 0 to 3"):
        module(tokens)
    np.testing.assert_array_equal(*net.apply(params, tokens)[0])
    net, params = embeddings(False)
    assert net.net.apply(params, tokens).shape == (1, 2, D)


def test_ids_outside_of_the_table_are_refused():
    """They were clamped, or counted from the end; traced ones still are, and those of padding count for nothing."""

    def make(rngs):
        types = modules.Embedding(2, D, scale=1.0, rngs=rngs)
        return modules.Embeddings(modules.Embedding(11, D, rngs=rngs), types=types)

    net, params = built(make)
    module, tokens = net.net.bind(params), int32([[3, 10, 0]])
    for wrong, worst in (([3, 11, 0], 11), ([3, -1, 12], 12), ([12, -7, 3], -7)):
        ids = int32([wrong])
        for call in (
            lambda ids=ids: module(Tokens(ids)),
            lambda ids=ids: module.step(ids[:, None], jnp.zeros_like(ids)[:, None]),
            lambda ids=ids: module.tokens(ids),
            lambda ids=ids: module(Tokens(ids, jnp.ones((1, 3), bool))),
        ):
            with pytest.raises(ValueError, match=rf"must be in \[0, V = 11\), the rows of their table, got {worst}$"):
                call()
        assert net.apply(params, Tokens(ids)).shape == (1, 3, D)
    with pytest.raises(ValueError, match=r"token types\) must be in \[0, V = 2\), the rows of their table, got 2$"):
        module(Tokens(tokens, types=int32([[0, 1, 2]])))
    valid = jnp.array([[True, True, False]])
    padded = module(Tokens(int32([[3, 10, -100]]), valid, types=int32([[0, 1, 9]])))
    expected = module(Tokens(tokens, valid, types=int32([[0, 1, 0]])))
    np.testing.assert_array_equal(padded[:, :2], expected[:, :2])
    whole = np.concatenate([tokens, tokens])  # more ids than a row, of a dtype in which V does not fit
    assert module.tokens(jnp.asarray(whole, jnp.int8)).shape == (2, 3, D)


@pytest.mark.full
def test_a_row_without_tokens_has_normalized_positions():
    """Outside of a traced function, too, where its length was refused."""

    def make(rngs):
        return modules.Embeddings(modules.Embedding(11, D, rngs=rngs), modules.RawPositions(D, normalized=True))

    net, params = built(make)
    module = net.net.bind(params)
    tokens, valid = int32([[3, 4], [0, 0]]), jnp.array([[True, True], [False, False]])
    found = module(Tokens(tokens, valid))
    np.testing.assert_array_equal(found[:1], module(Tokens(tokens[:1], valid[:1])))
    assert np.isfinite(found).all()


def test_normalized_positions_of_a_symbolic_length(monkeypatch):
    """Without padding, and of packed sequences: both ended in errors about shapes under `jax.export`."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # a symbol is no integer to the type checks
    positions = modules.RawPositions(D, normalized=True)
    net, params = built(lambda rngs: modules.Embeddings(modules.Embedding(11, D, rngs=rngs), positions))
    tokens, segments = int32([[3, 4, 5]]), int32([[1, 1, 2]])
    shape = jax.export.symbolic_shape("b, t", constraints=["t <= 5"])
    given = jax.ShapeDtypeStruct(shape, jnp.int32)
    both = lambda tokens, segments: [net.net.apply(params, Tokens(tokens, segments=x)) for x in (None, segments)]
    program = jax.export.export(jax.jit(both))(given, given)
    chex.assert_trees_all_close(program.call(tokens, segments), both(tokens, segments), rtol=1e-6)


def patches(images, size):
    """The patches of images as rows, by a reshape: row by row, and pixels in the same order."""
    batch, height, width, channels = images.shape
    grid = np.asarray(images).reshape(batch, height // size, size, width // size, size, channels)
    return grid.swapaxes(2, 3).reshape(batch, -1, size * size * channels)


@pytest.mark.parametrize("class_vector", [True, False])
def test_each_patch_is_mapped_by_itself(class_vector):
    """The class vector first, then the patches row by row, each with its position: a reshape and a linear map."""
    net, params = built(lambda rngs: modules.PatchEmbeddings((4, 6), 2, D, class_vector=class_vector, rngs=rngs))
    images, positions = normal(2, 4, 6, 3), np.asarray(params["positions"]["table"])
    kernel, bias = (np.asarray(params["projection"][name]) for name in ("kernel", "bias"))
    assert kernel.shape == (2, 2, 3, D)
    assert positions.shape == (6 + class_vector, D)
    expected = patches(images, 2) @ kernel.reshape(-1, D) + bias
    assert ("class_vector" in params) == class_vector
    if class_vector:
        first = np.broadcast_to(params["class_vector"], (2, 1, D))
        expected = np.concatenate([first, expected], 1)
    np.testing.assert_allclose(net.apply(params, images), expected + positions, atol=1e-5)
