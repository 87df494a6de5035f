"""CHECKLIST section P: positions (sinusoidal, learned, and the raw index that the documents start from)."""

import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer import functional, models, modules
from jaxformer.functional.positions import check_positions
from tests.models.small import SOURCE, Small
from tests.modules.small import built, count, normal


def table(length, dim):
    return np.asarray(functional.sinusoidal(jnp.arange(length), dim=dim), np.float64)


def test_p1_p2_raw_index_baselines():
    """P_t = t grows without end; t / (N - 1) stays in [0, 1] but its step depends on N: 1/3 at 4, 1/9 at 10."""
    for length, step in ((4, 1 / 3), (10, 1 / 9)):
        normalised = np.arange(length) / (length - 1)
        assert normalised[-1] == 1
        np.testing.assert_allclose(np.diff(normalised), step)
    assert np.abs(table(1000, 8)).max() <= 1 + 1e-6  # what sines have over the raw index
    np.testing.assert_array_equal(table(4, 8), table(10, 8)[:4])  # and over the normalised one


def test_p3_positions_are_added_before_the_first_block():
    """x' = x + p: a model with empty embeddings, whose learned table holds the sines, sees what the sines give."""
    sizes = {"width": 8, "num_heads": 2, "hidden": 8, "encoder_depth": 1, "decoder_depth": 1}
    sines, learned = [
        Small(models.EncoderDecoderConfig(13, 13, positions=p, **sizes)) for p in ("sinusoidal", "learned")
    ]
    params = learned.params | {"source_positions": {"table": jnp.asarray(table(512, 8), jnp.float32)}}
    encode = lambda small, p: small.apply(p, SOURCE, method="encode").states
    shared = {name: params[name] for name in sines.params}
    np.testing.assert_allclose(encode(learned, params), encode(sines, shared), atol=1e-5)


def test_p4_interleaved_sines_and_cosines():
    """p_t(2k) = sin(w_k t), p_t(2k + 1) = cos(w_k t), in [-1, 1], for every t."""
    found = np.asarray(functional.sinusoidal(jnp.array([0, 7, 100_000]), dim=6), np.float64)
    assert np.abs(found).max() <= 1 + 1e-6
    for k in range(3):
        angle = 7 * 10_000 ** (-2 * k / 6)
        np.testing.assert_allclose(found[1, 2 * k : 2 * k + 2], [np.sin(angle), np.cos(angle)], atol=1e-6)
    with pytest.raises(ValueError, match="even"):
        functional.sinusoidal(jnp.arange(2), dim=5)


def test_p5_wavelengths():
    """2 pi 10000^(2k/d): 6.2832 and 628.3185 at d = 4; at d = 512 up to 60,611, and never 2 pi 10000 = 62,832."""
    wavelength = lambda dim: 2 * np.pi * 10_000 ** (np.arange(0, dim, 2) / dim)
    np.testing.assert_allclose(wavelength(4), [6.2832, 628.3185], atol=1e-4)
    np.testing.assert_allclose(wavelength(512)[[0, -1]], [6.2832, 60_611], rtol=1e-5)
    # The function has them: a band returns to its start after one wavelength, to the nearest whole position.
    period = round(wavelength(4)[1])
    np.testing.assert_allclose(table(period + 1, 4)[period, 2:], [0, 1], atol=4e-3)


def test_p6_frequencies_at_eight():
    """w = 1, 1/10, 1/100, 1/1000: the angle at t = 1."""
    first = table(2, 8)[1]
    np.testing.assert_allclose(np.arctan2(first[0::2], first[1::2]), [1, 0.1, 0.01, 0.001], rtol=1e-5)


def test_p7_table_of_i_can_buy():
    """Table 17.1, d = 4."""
    expected = [
        [0, 1, 0, 1],
        [0.841471, 0.540302, 0.010000, 0.999950],
        [0.909297, -0.416147, 0.019999, 0.999800],
    ]
    np.testing.assert_allclose(table(3, 4), expected, atol=1e-6)


def test_p8_a_sine_alone_is_ambiguous():
    """sin pi/6 = sin 5pi/6 = .5; the cosines differ in sign: each pair is a point of the unit circle."""
    assert np.sin(np.pi / 6) == pytest.approx(np.sin(5 * np.pi / 6)) == pytest.approx(0.5)
    assert np.cos(np.pi / 6) == pytest.approx(-np.cos(5 * np.pi / 6)) == pytest.approx(0.8660, abs=1e-4)
    found = table(50, 16)
    np.testing.assert_allclose(found[:, 0::2] ** 2 + found[:, 1::2] ** 2, 1, atol=1e-5)


@pytest.mark.parametrize(("offset", "expected"), [(0, 256), (1, 249.1021), (5, 189.5967)])
def test_p9_dots_depend_on_the_offset_alone(offset, expected):
    """p_t . p_{t+o} = sum_k cos(w_k o), whatever t; d = 512."""
    found = table(300, 512)
    for start in (0, 17, 250):
        assert found[start] @ found[start + offset] == pytest.approx(expected, abs=5e-3)


def test_p9_an_offset_is_a_rotation():
    """One 2 x 2 rotation a band takes p_t to p_{t+3}, for every t."""
    found, offset = table(40, 8), 3
    for k in range(4):
        angle = offset * 10_000 ** (-2 * k / 8)
        rotation = np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])
        here, there = found[:-offset, 2 * k : 2 * k + 2], found[offset:, 2 * k : 2 * k + 2]
        np.testing.assert_allclose(here @ rotation.T, there, atol=1e-5)


def test_p10_fast_and_slow_bands():
    """Neighbours differ in the fast bands, far positions in slow ones; a fast band repeats, a slow one hardly moves."""
    found = table(200, 64)
    near, far = np.abs(found[11] - found[10]), np.abs(found[190] - found[10])
    assert near[:8].max() > 0.4
    assert near[48:].max() < 1e-2
    assert far[32:48].max() > 0.3
    assert np.abs(found[44, :2] - found[0, :2]).max() < 0.02  # 44 is nearly 7 turns of the first band


def test_p11_learned_table():
    """A row a position, N_max d parameters; beyond the table an error, not a vector."""
    net, params = built(lambda rngs: modules.LearnedPositions(6, 4, rngs=rngs))
    assert count(params) == 24
    np.testing.assert_array_equal(net.apply(params, jnp.arange(3)[None], length=3)[0], params["table"][:3])
    with pytest.raises(ValueError, match="length 7 has no learned position beyond 6"):
        check_positions(7, 6)


def test_p14_a_dog_that_bites():
    """Without positions "the dog bit the man" and its reverse give the same multiset of outputs; with them, not."""
    words = {w: normal(8, seed=i) for i, w in enumerate("the dog bit man cat chased mouse".split())}
    weight = [normal(8, 8, seed=20 + i) for i in range(3)]

    def outputs(sentence, positions):
        x = jnp.stack([words[w] for w in sentence.split()])
        x = x + jnp.asarray(table(len(x), 8), jnp.float32) if positions else x
        found = np.asarray(functional.attention_head(x @ weight[0], x @ weight[1], x @ weight[2])[0])
        return found[np.lexsort(found.round(3).T)]

    for one, other in (
        ("the dog bit the man", "the man bit the dog"),
        ("the cat chased the mouse", "the mouse chased the cat"),
    ):
        np.testing.assert_allclose(outputs(one, False), outputs(other, False), atol=1e-4)
        assert not np.allclose(outputs(one, True), outputs(other, True), atol=0.1)


def test_c10_cost_of_a_learned_table():
    """512 x 768 = 393,216."""
    net, _ = built(lambda rngs: modules.LearnedPositions(512, 768, rngs=rngs))
    assert count(net.shapes) == 393_216
