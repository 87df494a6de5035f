"""The encoder alone: its memory, and its captured attention."""

import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxformer import functional, models, modules
from tests.models.small import SOURCE, SOURCE_VALID, B, S, Small, V, model
from tests.modules.small import int32, quick


def encode(small):
    return quick(lambda params, tokens: small.net.bind(params).encoder(functional.Tokens(tokens, SOURCE_VALID))[0])


def test_memory_has_states_and_a_mask():
    small = model("pre")
    memory = encode(small)(small.params, SOURCE)
    assert isinstance(memory, models.Memory)
    assert memory.states.shape == (B, S, 8)
    np.testing.assert_array_equal(memory.mask(functional.Tokens(SOURCE)).dense(1, S)[:, 0, 0], SOURCE_VALID)
    assert models.Memory(memory.states, None).mask(functional.Tokens(SOURCE)) is None


def test_every_token_attends_to_every_real_one():
    """A later token changes earlier states; padding changes no real state."""
    small = model("post")
    run = encode(small)
    states = lambda tokens: np.asarray(run(small.params, tokens).states)
    plain = states(SOURCE)
    assert (plain[1, :4] != states(SOURCE.at[1, 3].set(2))[1, :4]).any(-1).all()
    np.testing.assert_array_equal(plain[1, :4], states(jnp.where(SOURCE_VALID, SOURCE, 7))[1, :4])


def test_own_embeddings_get_the_segments():
    """They got none, unless their position vectors depended on the length; those of a decoder got them always."""
    given = []

    def embeddings(tokens, *, key):
        given.append(tokens.segments)
        return jnp.zeros((*tokens.shape, 8))

    encoder, segments = models.Encoder(embeddings), jnp.ones_like(SOURCE)
    encoder(functional.Tokens(SOURCE))
    memory, _ = encoder(functional.Tokens(SOURCE, segments=segments))
    assert given == [None, segments]
    assert memory.segments is segments


class Doubled(nnx.Module):
    """Own embeddings, which are neither `Embeddings` nor patches."""

    def __init__(self, rngs):
        self.table = modules.Embedding(V, 8, rngs=rngs)

    def __call__(self, tokens, *, key=None):
        return 2 * self.table(tokens.ids)


def test_states_of_own_embeddings_see_their_own_segment():
    config = models.EncoderConfig(V, d_model=8, num_heads=2, d_ff=12, num_layers=1)
    small = Small(
        config, lambda config, rngs: models.Encoder(Doubled(rngs), models.make_encoder(config, rngs=rngs).stack)
    )
    segments = int32([[1, 1, 1, 2, 2, 2]] * B)
    states = lambda ids: np.asarray(small.apply(small.params, functional.Tokens(ids, segments=segments))[0].states[0])
    plain, changed = states(SOURCE), states(SOURCE.at[0, 4:].set(2))
    np.testing.assert_array_equal(plain[:3], changed[:3])
    assert (plain[3:] != changed[3:]).any(-1).all()
