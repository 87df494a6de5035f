"""CHECKLIST section P: sinusoidal and learned positions, and the raw index that the documents start from."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer import functional, models, modules, pure
from jaxformer.config import kind_of
from jaxformer.functional.positions.vectors import check_positions
from jaxformer.models import choices, families
from tests.models.small import SOURCE, Small, replaced
from tests.modules.small import built, count, normal
from tests.selection import first


def table(length, dim):
    return np.asarray(functional.sinusoidal(jnp.arange(length), dim=dim), np.float64)


def test_p1_p2_raw_index_baselines():
    """P_t = t grows without end; t / (N - 1) stays in [0, 1] but its step depends on N: 1/3 at 4, 1/9 at 10."""
    raw = functional.raw_positions(1 + jnp.arange(1000))  # 17.46 counts from 1
    assert (float(raw[0, 0]), float(raw.max())) == (1, 1000)
    normalized = lambda length: np.asarray(functional.normalized_positions(jnp.arange(length), length=length))[:, 0]
    for length, step in ((4, 1 / 3), (10, 1 / 9)):
        assert (normalized(length)[0], normalized(length)[-1]) == (0, 1)
        np.testing.assert_allclose(np.diff(normalized(length)), step, rtol=1e-6)
    assert np.abs(normalized(10)[:4] - normalized(4)).max() > 0.3  # token 3 is at 1, and at 1/3
    assert np.abs(table(1000, 8)).max() <= 1 + 1e-6  # bounded, unlike the raw index
    np.testing.assert_array_equal(table(4, 8), table(10, 8)[:4])  # independent of the length


def test_p3_positions_are_added_before_the_first_block():
    """x' = x + p: a model whose learned table holds the sinusoids equals the model with sinusoids."""
    sizes = {"d_model": 8, "num_heads": 2, "d_ff": 8, "num_encoder_layers": 1, "num_decoder_layers": 1}
    sines, learned = [
        Small(models.EncoderDecoderConfig(13, 13, positions=p, **sizes))
        for p in (choices.Sinusoidal(), choices.Learned())
    ]
    params = replaced(learned.params, {"encoder.embeddings.positions.table": jnp.asarray(table(512, 8), jnp.float32)})
    encode = lambda small, p: small.call(models.EncoderDecoder.encode, p, SOURCE).states
    shared = {"encoder": {"stack": params["encoder"]["stack"]}, "decoder": dict(params["decoder"])}
    shared["decoder"]["embeddings"] = {"tokens": params["decoder"]["embeddings"]["tokens"]}
    np.testing.assert_allclose(encode(learned, params), encode(sines, shared), atol=1e-5)


def test_p4_interleaved_sines_and_cosines():
    """p_t(2k) = sin(w_k t), p_t(2k + 1) = cos(w_k t), in [-1, 1], for every t."""
    result = np.asarray(functional.sinusoidal(jnp.array([0, 7, 100_000]), dim=6), np.float64)
    assert np.abs(result).max() <= 1 + 1e-6
    for k in range(3):
        angle = 7 * 10_000 ** (-2 * k / 6)
        np.testing.assert_allclose(result[1, 2 * k : 2 * k + 2], [np.sin(angle), np.cos(angle)], atol=1e-6)
    with pytest.raises(ValueError, match="even"):
        functional.sinusoidal(jnp.arange(2), dim=5)


def test_p5_wavelengths():
    """2 pi 10000^(2k/d): 6.2832 and 628.3185 at d = 4; at d = 512 up to 60,611, and never 2 pi 10000 = 62,832.

    The wavelength of a band follows from its angle after one step.
    """

    def wavelengths(dim):
        one = table(2, dim)[1]
        return 2 * np.pi / np.arctan2(one[0::2], one[1::2])

    np.testing.assert_allclose(wavelengths(4), [6.2832, 628.3185], rtol=2e-5)
    np.testing.assert_allclose(wavelengths(512)[[0, -1]], [6.2832, 60_611], rtol=2e-5)
    assert (np.diff(wavelengths(512)) > 0).all()
    # A band returns to its start after one wavelength, rounded to a whole position.
    np.testing.assert_allclose(table(629, 4)[628, 2:], [0, 1], atol=4e-3)


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
    """sin pi/6 = sin 5pi/6 = .5; the cosines differ in sign: each pair is a point on the unit circle."""
    assert np.sin(np.pi / 6) == pytest.approx(np.sin(5 * np.pi / 6)) == pytest.approx(0.5)
    assert np.cos(np.pi / 6) == pytest.approx(-np.cos(5 * np.pi / 6)) == pytest.approx(0.8660, abs=1e-4)
    result = table(50, 16)
    np.testing.assert_allclose(result[:, 0::2] ** 2 + result[:, 1::2] ** 2, 1, atol=1e-5)


@pytest.mark.parametrize(("offset", "expected"), [(0, 256), (1, 249.1021), (5, 189.5967)])
def test_p9_dots_depend_on_the_offset_alone(offset, expected):
    """p_t . p_{t+o} = sum_k cos(w_k o) for every t; d = 512."""
    result = table(300, 512)
    for start in (0, 17, 250):
        assert result[start] @ result[start + offset] == pytest.approx(expected, abs=5e-3)


def test_p9_an_offset_is_a_rotation():
    """One 2 x 2 rotation per band maps p_t to p_{t+3}, for every t."""
    result, offset = table(40, 8), 3
    for k in range(4):
        angle = offset * 10_000 ** (-2 * k / 8)
        rotation = np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])
        before, after = result[:-offset, 2 * k : 2 * k + 2], result[offset:, 2 * k : 2 * k + 2]
        np.testing.assert_allclose(before @ rotation.T, after, atol=1e-5)


def test_p10_fast_and_slow_bands():
    """Neighbors differ in fast bands, distant positions in slow ones. Fast bands repeat, slow ones hardly change."""
    result = table(200, 64)
    near, far = np.abs(result[11] - result[10]), np.abs(result[190] - result[10])
    assert near[:8].max() > 0.4
    assert near[48:].max() < 1e-2
    assert far[32:48].max() > 0.3
    assert np.abs(result[44, :2] - result[0, :2]).max() < 0.02  # 44 is nearly 7 turns of the first band


def test_p11_learned_table():
    """The table has one row per position and N_max d parameters; a position beyond it is an error."""
    net, params = built(lambda rngs: modules.LearnedPositions(6, 4, rngs=rngs))
    assert count(params) == 24
    np.testing.assert_array_equal(net.apply(params, jnp.arange(3)[None], length=3)[0], params["table"][:3])
    with pytest.raises(ValueError, match="length 7 has no learned position beyond 6"):
        check_positions(7, 6)


def test_p11_ways_out_of_the_table():
    """A table can be truncated, extended by random rows or copies, or interpolated; old rows stay equal bit for bit."""
    rows = normal(6, 4)
    lookup = lambda table, at: functional.learned(table, jnp.array(at))
    np.testing.assert_array_equal(functional.resize_positions(rows, 4, method="truncate"), rows[:4])
    longer = functional.resize_positions(rows, 500, method="extend", key=jax.random.key(0))
    np.testing.assert_array_equal(lookup(longer, [0, 5]), rows[jnp.array([0, 5])])
    assert float(longer[6:].std()) == pytest.approx(float(rows.std()), rel=0.1)
    again = functional.resize_positions(rows, 15, method="copy")
    np.testing.assert_array_equal(lookup(again, [0, 5, 6, 11, 12, 14]), rows[jnp.array([0, 5, 0, 5, 0, 2])])
    stretched = functional.resize_positions(rows, 11, method="interpolate")
    np.testing.assert_allclose(lookup(stretched, [0, 2, 10]), rows[jnp.array([0, 1, 5])], atol=1e-6)
    np.testing.assert_allclose(lookup(stretched, [3]), (rows[1:2] + rows[2:3]) / 2, atol=1e-6)


def test_p11_v2_patch_grids():
    """A 2 x 3 grid of patches becomes 3 x 5: interpolated in both directions; the corners and the class row stay."""
    rows = normal(1 + 2 * 3, 4)
    resized = functional.resize_grid_positions(rows, (2, 3), (3, 5), num_class_rows=1)
    assert resized.shape == (1 + 3 * 5, 4)
    np.testing.assert_array_equal(resized[0], rows[0])
    before, after = rows[1:].reshape(2, 3, 4), resized[1:].reshape(3, 5, 4)
    np.testing.assert_allclose(after[::2, ::2], before, atol=1e-6)
    np.testing.assert_allclose(after[1, 1], before[:, :2].mean((0, 1)), atol=1e-6)


def rotated(query, key, start):
    at = start + jnp.arange(query.shape[1])
    return functional.rotary(query, at), functional.rotary(key, at), None


def recurrent(query, key, start):
    del start
    query, bias = functional.transformer_xl(query, normal(8, 2, 4), normal(2, 4, seed=1), normal(2, 4, seed=2))
    return query, key, bias


def added(query, key, start):
    lift = lambda x: x + functional.sinusoidal(start + jnp.arange(x.shape[1]), dim=4)[None, :, None] @ normal(4, 4)
    return lift(query), lift(key), None


RELATIVE = {
    "rotary": rotated,  # LLaMA
    "transformer_xl": recurrent,
    "t5": lambda query, key, start: (query, key, functional.t5_bias(normal(8, 2), max_distance=6)),
    "shaw": lambda query, key, start: (query, key, functional.relative_keys(normal(7, 4))),
    "alibi": lambda query, key, start: (query, key, functional.alibi(2)),
}


def logits(encode, start=0):
    """Returns the logits of six equal tokens, each row minus its diagonal, which the softmax leaves open."""
    query, key = (jnp.broadcast_to(normal(1, 1, 2, 4, seed=i), (1, 6, 2, 4)) for i in (3, 4))
    query, key, bias = encode(query, key, start)
    result = np.log(np.asarray(functional.attention_weights(query, key, bias=bias)))[0]
    return result - np.diagonal(result, axis1=1, axis2=2)[..., None]


@pytest.mark.parametrize("name", first(RELATIVE, "rotary", "t5", "shaw"))
def test_p12_scores_depend_on_the_offset_alone(name):
    """Relative encodings: with equal contents the score of i and j is a non-constant function of i - j.

    The sinusoids of the original, added to the input of projections, lack this property.
    """
    result = logits(RELATIVE[name])
    np.testing.assert_allclose(result[:, 1:, 1:], result[:, :-1, :-1], atol=2e-5)
    assert np.abs(result).max() > 0.1
    absolute = logits(added)
    assert np.abs(absolute[:, 1:, 1:] - absolute[:, :-1, :-1]).max() > 0.1


def test_p12_rotary_ignores_the_start_of_a_text():
    """The same six tokens at positions from 1,000 on have the same scores; with added sinusoids they do not."""
    np.testing.assert_allclose(logits(rotated, 1_000), logits(rotated), atol=1e-3)
    assert np.abs(logits(added, 1_000) - logits(added)).max() > 0.1


SIZES = {"d_model": 8, "num_heads": 2, "d_ff": 8}
FAMILIES = {
    "original": models.EncoderDecoderConfig(11, 11, **SIZES),
    "BERT": families.bert(11, **SIZES),
    "GPT": families.gpt2(11, **SIZES),
    "ViT": families.vit((32, 32), **SIZES),
    "T5": families.t5(11, **SIZES),
    "LLaMA": families.llama(11, **SIZES),
}


SCHEMES = {"none": None} | {
    kind_of(config.positions): config.positions for name, config in FAMILIES.items() if name != "ViT"
}


def test_p13_who_uses_what():
    """Sinusoids or a learned table enter at the input, T5's bias and LLaMA's rotations inside the layers."""
    used = {name: kind_of(config.positions) for name, config in FAMILIES.items() if name != "ViT"}
    assert used == {"original": "sinusoidal", "T5": "t5", "LLaMA": "rotary", "BERT": "learned", "GPT": "learned"}
    embeddings = pure(models.make_encoder, FAMILIES["ViT"]).shapes["embeddings"]
    assert embeddings["positions"]["table"].shape == (1 + 2 * 2, SIZES["d_model"])  # patches always have a table


@pytest.mark.parametrize("scheme", first(SCHEMES, "none", "rotary", "t5"))
def test_p13_all_of_them_know_the_order(scheme):
    """Each distinguishes a sentence from its reverse; without any, the encoder is equivariant."""
    small = Small(models.EncoderConfig(11, num_layers=1, positions=SCHEMES[scheme], **SIZES), models.make_encoder)
    tokens = jnp.array([[3, 4, 5, 6, 7]], jnp.int32)
    forward, backward = (small.apply(small.params, x)[0].states for x in (tokens, tokens[:, ::-1]))
    assert np.allclose(forward, backward[:, ::-1], atol=1e-4) == (scheme == "none")


def test_z7_counted_from_one_or_from_zero():
    """000, 001 and 17.46 count from 1; 002, 17.47 and 17.50 from 0. The rows shift by one, the products stay equal."""
    one, zero = (functional.sinusoidal(start + jnp.arange(6), dim=8) for start in (1, 0))
    np.testing.assert_array_equal(one[:-1], zero[1:])
    np.testing.assert_allclose(one @ one.T, zero @ zero.T, atol=1e-5)


def test_p14_a_dog_that_bites():
    """Without positions "the dog bit the man" and its reverse give the same outputs as multisets; with them not."""
    words = {w: normal(8, seed=i) for i, w in enumerate("the dog bit man cat chased mouse".split())}
    weight = [normal(8, 8, seed=20 + i) for i in range(3)]

    def outputs(sentence, positions):
        x = jnp.stack([words[w] for w in sentence.split()])
        x = x + jnp.asarray(table(len(x), 8), jnp.float32) if positions else x
        result = np.asarray(functional.attention_head(x @ weight[0], x @ weight[1], x @ weight[2])[0])
        return result[np.lexsort(result.round(3).T)]

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
