"""Positions: each scheme against its formula in NumPy, and what it promises of longer sequences."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer import functional, masks
from jaxformer.functional.positions import check_positions
from jaxformer.functional.positions.rotary import Frequencies
from tests.modules.small import quick


@pytest.mark.parametrize(("dim", "base"), [(2, 10_000.0), (8, 10_000.0), (512, 10_000.0), (16, 100.0)])
def test_sinusoidal_formula(dim, base):
    positions = np.array([[0, 1, 2], [100, 511, 2000]])
    got = functional.sinusoidal(jnp.asarray(positions), dim=dim, base=base)
    assert got.shape == (2, 3, dim)
    assert got.dtype == jnp.float32
    for k in range(dim // 2):
        angle = positions * base ** (-2 * k / dim)
        np.testing.assert_allclose(got[..., 2 * k], np.sin(angle), atol=2e-4)
        np.testing.assert_allclose(got[..., 2 * k + 1], np.cos(angle), atol=2e-4)


def test_sinusoidal_refuses_an_odd_width():
    with pytest.raises(ValueError, match="dim must be even, got 7"):
        functional.sinusoidal(jnp.arange(3), dim=7)


def test_learned_looks_rows_up():
    table = jnp.arange(12.0).reshape(4, 3)
    np.testing.assert_array_equal(functional.learned(table, jnp.array([[3, 0]])), [[[9, 10, 11], [0, 1, 2]]])


def test_a_table_has_an_end():
    check_positions(4, 4)
    with pytest.raises(ValueError, match=r"length 5 has no learned position beyond 4"):
        check_positions(5, 4)


def test_sinusoidal_of_known_positions_is_a_constant():
    """NumPy positions are computed while tracing, in float64: no sine is left in the program, none is off."""
    positions = np.array([0, 3, 70_000])
    got = functional.sinusoidal(positions, dim=6)
    angle = positions[:, None] * 10_000.0 ** (-np.arange(0, 6, 2) / 6)
    np.testing.assert_allclose(got[:, ::2], np.sin(angle), atol=1e-7)
    program = lambda known: str(jax.make_jaxpr(lambda x: x + functional.sinusoidal(known(3), dim=4))(jnp.ones((3, 4))))
    assert " sin " in program(jnp.arange)
    assert " sin " not in program(np.arange)


@pytest.mark.parametrize("pairs", ["halves", "neighbors"])
def test_rotary_turns_pairs(pairs):
    """Each pair is a complex number, multiplied by e^(i omega t)."""
    x = np.random.default_rng(0).standard_normal((2, 5, 3, 8))
    first, second = (x[..., :4], x[..., 4:]) if pairs == "halves" else (x[..., ::2], x[..., 1::2])
    positions = np.array([[0, 1, 2, 3, 4], [7, 8, 9, 0, 1]])
    angle = positions[:, :, None, None] * 10_000.0 ** (-np.arange(0, 8, 2) / 8)
    turned = (first + 1j * second) * np.exp(1j * angle)
    got = functional.rotary(jnp.asarray(x, jnp.float32), jnp.asarray(positions), pairs=pairs)
    parts = (got[..., :4], got[..., 4:]) if pairs == "halves" else (got[..., ::2], got[..., 1::2])
    np.testing.assert_allclose(parts[0], turned.real, atol=1e-5)
    np.testing.assert_allclose(parts[1], turned.imag, atol=1e-5)


@pytest.mark.parametrize("scaling", [None, functional.linear_scaling(4.0), functional.yarn_scaling(4.0, 32)])
def test_rotary_logits_depend_on_the_distance(scaling):
    query, key = jnp.asarray(np.random.default_rng(1).standard_normal((2, 1, 1, 1, 16)), jnp.float32)
    turn = lambda x, t: functional.rotary(x, jnp.array([t]), scaling=scaling)
    logits = [float(jnp.vdot(turn(query, t), turn(key, t - 5))) for t in (5, 30, 900)]
    np.testing.assert_allclose(logits, logits[0], atol=2e-3)
    assert abs(logits[0] - float(jnp.vdot(turn(query, 5), turn(key, 2)))) > 1e-2


def frequencies(scaling, dim=8, base=10_000.0):
    given = Frequencies(base ** (-np.arange(0, dim, 2) / dim))
    return given.radians, scaling(given, base)


def test_rotary_scalings():
    """At factor 4: what each promises about the fastest, the slowest, and those between."""
    plain, linear = frequencies(functional.linear_scaling(4.0))
    np.testing.assert_allclose(linear.radians, plain / 4)
    _, ntk = frequencies(functional.ntk_scaling(4.0))
    np.testing.assert_allclose(ntk.radians[[0, -1]], [plain[0], plain[-1] / 4])
    _, yarn = frequencies(functional.yarn_scaling(4.0, 2048), dim=64)
    plain64, _ = frequencies(functional.linear_scaling(4.0), dim=64)
    turns = 2048 * plain64 / (2 * np.pi)
    np.testing.assert_allclose(yarn.radians[turns > 40], plain64[turns > 40])
    np.testing.assert_allclose(yarn.radians[turns < 0.8], plain64[turns < 0.8] / 4)
    assert (np.diff(yarn.radians) < 0).all()
    assert yarn.amplitude == pytest.approx(0.1 * np.log(4) + 1)
    _, llama = frequencies(functional.llama3_scaling(8.0, 8192), dim=128, base=500_000.0)
    plain128, _ = frequencies(functional.linear_scaling(1.0), dim=128, base=500_000.0)
    wavelength = 2 * np.pi / plain128
    np.testing.assert_allclose(llama.radians[wavelength < 8192 / 4], plain128[wavelength < 8192 / 4])
    np.testing.assert_allclose(llama.radians[wavelength > 8192], plain128[wavelength > 8192] / 8)
    smooth = (8192 / wavelength - 1) / 3
    between = (smooth > 0) & (smooth < 1)
    want = (1 - smooth) * plain128 / 8 + smooth * plain128
    np.testing.assert_allclose(llama.radians[between], want[between])
    assert between.any()


def test_rotary_refusals():
    with pytest.raises(ValueError, match="head dim must be even, got 3"):
        functional.rotary(jnp.zeros((1, 2, 1, 3)), jnp.arange(2))
    with pytest.raises(ValueError, match="'halves' or 'neighbors', got 'thirds'"):
        inspect.unwrap(functional.rotary)(jnp.zeros((1, 2, 1, 4)), jnp.arange(2), pairs="thirds")


@pytest.mark.parametrize(
    ("num_heads", "slopes"),
    [(8, [2.0**-i for i in range(1, 9)]), (3, [2**-4, 2**-8, 2**-2]), (6, [0.25, 0.0625, 2**-6, 2**-8, 0.5, 0.125])],
)
def test_alibi_slopes(num_heads, slopes):
    """Powers of two are the paper's; for others its code interleaves those of the next power."""
    np.testing.assert_allclose(functional.alibi(num_heads).slopes, slopes)


def test_alibi_extends_without_retraining():
    """The bias of a longer sequence holds that of a shorter one."""
    tile = lambda n: functional.alibi(2).tile(None, jnp.arange(n), jnp.arange(n))
    np.testing.assert_array_equal(tile(9)[..., :5, :5], tile(5))


@pytest.mark.parametrize("bidirectional", [False, True])
def test_t5_buckets(bidirectional):
    """Half exact, half logarithmic, the last for all that is farther; one-way, what is ahead is distance 0."""
    ahead = jnp.arange(-300, 301)
    found = np.asarray(functional.t5_bucket(ahead, num_buckets=32, max_distance=128, bidirectional=bidirectional))
    behind, ahead_of = found[300::-1], found[300:]
    exact, last = (8, 15) if bidirectional else (16, 31)
    assert behind[:exact].tolist() == list(range(exact))
    assert (np.diff(behind) >= 0).all()
    assert set(behind[128:]) == {last}
    assert sorted(set(behind)) == list(range(last + 1))
    assert (ahead_of[1:] == behind[1:] + 16).all() if bidirectional else not ahead_of.any()


def test_t5_buckets_at_whole_quotients():
    """80 = 64 (100 / 64)^(32 / 64) exactly: there a logarithm in float32 falls one bucket short."""
    options = {"num_buckets": 128, "max_distance": 100, "bidirectional": False}
    assert functional.t5_bucket(jnp.array([-79, -80]), **options).tolist() == [94, 96]


def test_t5_refuses_a_table_that_cannot_work():
    with pytest.raises(ValueError, match="2 buckets, 128"):
        functional.t5_bias(jnp.zeros((2, 4)))
    with pytest.raises(ValueError, match="32 buckets, 8"):
        functional.t5_bias(jnp.zeros((32, 4)), max_distance=8)


def test_relative_keys_need_a_middle():
    with pytest.raises(ValueError, match=r"2 k \+ 1 distances, got 4"):
        functional.relative_keys(jnp.zeros((4, 8)))


def test_transformer_xl_is_its_four_terms():
    """q k + q r + u k + v r, scaled (Dai et al. 2019, 3.3), against sums over pairs."""
    draw = np.random.default_rng(5).standard_normal
    query, key, value = draw((3, 1, 4, 2, 4))
    kernel, u, v = draw((6, 2, 4)), draw((2, 4)), draw((2, 4))
    logits = np.zeros((2, 4, 4))
    for n, t, s in np.ndindex(2, 4, 4):
        angle = (t - s) * 10_000.0 ** (-np.arange(0, 6, 2) / 6)
        r = np.stack([np.sin(angle), np.cos(angle)], -1).reshape(6) @ kernel[:, n]
        q, k = query[0, t, n], key[0, s, n]
        logits[n, t, s] = (q @ k + q @ r + u[n] @ k + v[n] @ r) / 2
    weights = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    cast = lambda x: jnp.asarray(x, jnp.float32)
    moved, bias = functional.transformer_xl(cast(query), cast(kernel), cast(u), cast(v))
    got = functional.attention(moved, cast(key), cast(value), bias=bias)
    np.testing.assert_allclose(got[0], np.einsum("nts,snj->tnj", weights, value[0]), atol=1e-5)


TABLE = jnp.asarray(np.random.default_rng(2).standard_normal((5, 3)), jnp.float32)


def test_resize_truncate_and_extend_leave_short_inputs_alone():
    resize = functional.resize_positions
    np.testing.assert_array_equal(resize(TABLE, 3, method="truncate"), TABLE[:3])
    longer = resize(TABLE, 8, method="extend")
    np.testing.assert_array_equal(longer[:5], TABLE)
    assert not np.asarray(longer[5:]).any()
    drawn = resize(TABLE, 4000, method="extend", key=jax.random.key(0))
    np.testing.assert_array_equal(drawn[:5], TABLE)
    assert float(drawn[5:].std()) == pytest.approx(float(TABLE.std()), rel=0.05)


def test_resize_interpolate_keeps_ends_and_lines():
    longer = functional.resize_positions(TABLE, 9, method="interpolate")
    np.testing.assert_allclose(longer[::2], TABLE, atol=1e-6)
    np.testing.assert_allclose(longer[1::2], (TABLE[1:] + TABLE[:-1]) / 2, atol=1e-6)
    shorter = functional.resize_positions(TABLE, 3, method="interpolate")
    np.testing.assert_allclose(shorter, TABLE[::2], atol=1e-6)
    np.testing.assert_array_equal(functional.resize_positions(TABLE, 5, method="interpolate"), TABLE)
    one = functional.resize_positions(TABLE[:1], 4, method="interpolate")
    np.testing.assert_allclose(one, jnp.broadcast_to(TABLE[:1], (4, 3)))


@pytest.mark.parametrize(("length", "method"), [(6, "truncate"), (4, "extend"), (0, "interpolate")])
def test_resize_refuses_the_wrong_direction(length, method):
    with pytest.raises(ValueError, match=f"cannot {method} a table of 5 positions to {length}"):
        functional.resize_positions(TABLE, length, method=method)


@pytest.mark.parametrize("name", ["alibi", "t5", "relative"])
def test_bias_with_a_cache(name):
    """Row t of the whole is the one query at position t against the keys so far: ``bias.at(t)``."""
    query, key, value = jnp.asarray(np.random.default_rng(8).standard_normal((3, 2, 6, 4, 8)), jnp.float32)
    bias = {
        "alibi": functional.alibi(4),
        "t5": functional.t5_bias(jnp.asarray(np.random.default_rng(1).standard_normal((8, 4)), jnp.float32)),
        "relative": functional.relative_keys(
            jnp.asarray(np.random.default_rng(1).standard_normal((7, 8)), jnp.float32)
        ),
    }[name]
    whole = functional.attention(query, key, value, mask=masks.causal(), bias=bias)
    weights = functional.attention_weights(query, key, mask=masks.causal(), bias=bias, rows=[5, 2])
    attend = quick(functional.attention, static_argnames="implementation")
    for t, implementation in ((0, "blockwise"), (3, "reference"), (5, "blockwise")):
        row = attend(
            query[:, t : t + 1], key, value, mask=masks.causal(t), bias=bias.at(t), implementation=implementation
        )
        np.testing.assert_allclose(row[:, 0], whole[:, t], atol=1e-5)
    np.testing.assert_allclose(jnp.einsum("bnts,bsnj->btnj", weights, value), whole[:, jnp.array([5, 2])], atol=1e-5)
