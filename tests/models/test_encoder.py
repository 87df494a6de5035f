"""The encoder alone: its memory, and its captured attention."""

import jax.numpy as jnp
import numpy as np

from jaxformer import models
from tests.models.small import SOURCE, SOURCE_VALID, B, S, Small, model
from tests.modules.small import int32, normal, quick


def encode(small):
    return quick(lambda params, tokens: small.net.bind(params).encoder(tokens, valid=SOURCE_VALID))


def test_memory_has_states_and_a_mask():
    small = model("pre")
    memory = encode(small)(small.params, SOURCE)
    assert isinstance(memory, models.Memory)
    assert memory.states.shape == (B, S, 8)
    np.testing.assert_array_equal(memory.mask.dense(1, S)[:, 0, 0], SOURCE_VALID)
    assert models.Memory(memory.states, None).mask is None


def test_captured_attention():
    small = model("pre")

    @quick
    def both(params):
        encoder = small.net.bind(params).encoder
        return encoder.captured(SOURCE, valid=SOURCE_VALID), encoder.run(SOURCE, valid=SOURCE_VALID, capture=("self",))

    intermediates, (memory, beside) = both(small.params)
    np.testing.assert_array_equal(memory.states, encode(small)(small.params, SOURCE).states)
    np.testing.assert_array_equal(intermediates["self"].query, beside["self"].query)
    assert intermediates.keys() == {"self"}
    assert intermediates["self"].query.shape == intermediates["self"].key.shape == (2, B, S, 2, 4)


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

    def embeddings(tokens, *, valid, positions, key, **further):
        given.append(further)
        return jnp.zeros((*tokens.shape, 8))

    encoder, segments = models.Encoder(embeddings), jnp.ones_like(SOURCE)
    encoder(SOURCE)
    encoder(SOURCE, segments=segments)
    assert given == [{}, {"segments": segments}]


def test_patches_see_their_own_segment():
    config = models.families.vit((4, 4), patch_size=2, d_model=8, num_heads=2, d_ff=12, num_layers=1)
    small = Small(config, models.make_encoder)
    segments, images = int32([[1, 1, 1, 2, 2]]), normal(1, 4, 4, 3)
    states = lambda images: np.asarray(small.apply(small.params, images, segments=segments).states[0])
    plain, changed = states(images), states(images.at[:, 2:].add(1))  # the last two patches
    np.testing.assert_array_equal(plain[:3], changed[:3])
    assert (plain[3:] != changed[3:]).any(-1).all()
