"""Attention, positions, norms and feed-forward functions against PyTorch's: values and gradients.

`test_torch` has the layers.
"""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer import functional, masks
from tests.parity.tensors import agree, array, close

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install torch")
pytestmark = pytest.mark.parity

D, N, H, B, T, S = 16, 4, 4, 2, 5, 7
ALLOWED = np.random.default_rng(5).random((B, N, T, S)) > 0.4
ALLOWED[..., 0] = True  # their empty rows are NaN
PADDED = np.array([[1, 1, 1, 1, 1, 1, 0], [1, 1, 1, 0, 0, 0, 0]], bool)
AHEAD = np.arange(S)[None] - np.arange(T)[:, None]
ALIBI = -(0.25 ** np.arange(1, N + 1))[:, None, None] * np.abs(AHEAD)


def attention(*inputs, grouped=False, **options):
    """Returns the result of PyTorch for ``[B, T, N, H]``."""
    swapped = [x.transpose(1, 2) for x in inputs]
    sdpa = torch.nn.functional.scaled_dot_product_attention
    return sdpa(*swapped, enable_gqa=grouped, **options).transpose(1, 2)


def lower_right(num_queries, num_keys):
    from torch.nn.attention.bias import causal_lower_right

    return causal_lower_right(num_queries, num_keys)


# name: lengths, key heads, width of a value, ours, theirs
CASES = {
    "nothing": ((T, S), N, H, {}, {}),
    "causal": ((T, S), N, H, {"mask": masks.causal()}, {"is_causal": True}),
    "lower right": ((T, S), N, H, {"mask": masks.causal(S - T)}, {"attn_mask": lower_right(T, S)}),
    "boolean": ((T, S), N, H, {"mask": masks.dense(ALLOWED)}, {"attn_mask": torch.tensor(ALLOWED)}),
    "scale": ((T, S), N, H, {"scale": 0.3}, {"scale": 0.3}),
    "wider values": ((T, S), N, 6, {"mask": masks.causal()}, {"is_causal": True}),
    "alibi": ((T, S), N, H, {"bias": functional.alibi(N)}, {"attn_mask": torch.tensor(ALIBI, dtype=torch.float32)}),
    "grouped": ((T, S), 2, H, {"mask": masks.dense(ALLOWED)}, {"attn_mask": torch.tensor(ALLOWED)}),
    "multi-query": (
        (T, S),
        1,
        H,
        {"mask": masks.padding(PADDED)},
        {"attn_mask": torch.tensor(PADDED)[:, None, None]},
    ),
    "several blocks": ((300, 300), 2, H, {"mask": masks.causal()}, {"is_causal": True}),
}


@pytest.mark.parametrize("implementation", [None, "reference", "blockwise"])
@pytest.mark.parametrize("name", CASES)
def test_scaled_dot_product_attention(name, implementation):
    (num_queries, num_keys), heads, value_dim, ours, theirs = CASES[name]
    agree(
        lambda q, k, v: functional.attention(q, k, v, implementation=implementation, **ours),
        lambda q, k, v: attention(q, k, v, grouped=heads != N, **theirs),
        array(B, num_queries, N, H),
        array(B, num_keys, heads, H, seed=1),
        array(B, num_keys, heads, value_dim, seed=2),
    )


@pytest.mark.parametrize("implementation", ["reference", "blockwise"])
@pytest.mark.parametrize("shape", [(B, N, T, S), (1, N, T, S), (B, 1, T, S)])
def test_bias(shape, implementation):
    """The gradient agrees too; a bias of minus infinity in PyTorch is a mask here."""
    hidden = torch.tensor(np.where(ALLOWED, 0, -np.inf).astype(np.float32))
    agree(
        lambda q, k, v, b: functional.attention(q, k, v, bias=b, mask=ALLOWED, implementation=implementation),
        lambda q, k, v, b: attention(q, k, v, attn_mask=b + hidden),
        array(B, T, N, H),
        array(B, S, N, H, seed=1),
        array(B, S, N, H, seed=2),
        array(*shape, seed=3),
    )


@pytest.mark.parametrize("implementation", ["reference", "blockwise"])
def test_bfloat16(implementation):
    """The result is within 2 % of PyTorch's, and within 1 % of float32's, for the same rounded inputs."""
    inputs = [array(B, n, N, 32, seed=i) for i, n in enumerate((T, S, S))]
    narrow = [jnp.asarray(x, jnp.bfloat16) for x in inputs]
    exact = attention(*[torch.tensor(np.asarray(x, np.float32)) for x in narrow], is_causal=True)
    theirs = attention(*[torch.tensor(np.asarray(x, np.float32)).bfloat16() for x in narrow], is_causal=True)
    ours = functional.attention(*narrow, mask=masks.causal(), implementation=implementation)
    assert ours.dtype == jnp.bfloat16
    np.testing.assert_allclose(np.asarray(ours, np.float32), theirs.float(), atol=2e-2, rtol=2e-2)
    np.testing.assert_allclose(np.asarray(ours, np.float32), exact, atol=1e-2, rtol=1e-2)


# name: ours, their mask of (b, h, q, k), their score
SEGMENTS = np.array([[0, 0, 0, 1, 1, 1, 2], [0, 1, 1, 1, 1, 2, 2]], np.int32)
PREFIX = np.array([4, 2], np.int32)
FLEX = {
    "window": ({"mask": masks.window(2, 1)}, lambda b, h, q, k: (k >= q - 2) & (k <= q + 1), None),
    "prefix": (
        {"mask": masks.causal() | masks.prefix(PREFIX)},
        lambda b, h, q, k: (k <= q) | (k < torch.tensor(PREFIX)[b]),
        None,
    ),
    "packed": (
        {"mask": masks.causal() & masks.segments(SEGMENTS)},
        lambda b, h, q, k: (k <= q) & (torch.tensor(SEGMENTS)[b, q] == torch.tensor(SEGMENTS)[b, k]),
        None,
    ),
    "empty rows": ({"mask": masks.causal(-2)}, lambda b, h, q, k: k <= q - 2, None),
    "soft cap": (
        {"mask": masks.causal(), "score": functional.soft_cap(0.5)},
        lambda b, h, q, k: k <= q,
        lambda score, b, h, q, k: 0.5 * torch.tanh(score / 0.5),
    ),
}


@pytest.mark.parametrize("implementation", ["reference", "blockwise"])
@pytest.mark.parametrize("name", FLEX)
@pytest.mark.filterwarnings("ignore")
def test_flex_attention(name, implementation):
    """PyTorch's flex attention, which has no gradients on a CPU. A query without keys gets 0 there too."""
    from torch.nn.attention import flex_attention as flex

    ours, mask, score = FLEX[name]
    inputs = [array(B, S, heads, H, seed=i) for i, heads in enumerate((N, 2, 2))]
    block_mask = flex.create_block_mask(mask, B, None, S, S, device="cpu")
    swapped = [torch.tensor(x).transpose(1, 2) for x in inputs]
    expected = flex.flex_attention(*swapped, score_mod=score, block_mask=block_mask, enable_gqa=True)
    output = functional.attention(*map(jnp.asarray, inputs), implementation=implementation, **ours)
    close(output, expected.transpose(1, 2))
    assert (name == "empty rows") == (not output[:, 0].any())


def test_empty_rows():
    """An intended difference: a query without keys gets NaN or 0 there, by version and kernel, and 0 here."""
    inputs = [array(1, 2, 1, H, seed=i) for i in range(3)]
    mask = np.array([[True, False], [False, False]])
    theirs = attention(*map(torch.tensor, inputs), attn_mask=torch.tensor(mask))
    ours = functional.attention(*map(jnp.asarray, inputs), mask=mask)
    close(ours[:, 0], theirs[:, 0])
    assert not ours[:, 1].any()
    assert not theirs[:, 1].nan_to_num().any()


@pytest.mark.parametrize("pairs", ["halves", "neighbors"])
@pytest.mark.parametrize("packed", [False, True])
def test_rotary(pairs, packed):
    """Pairs of features as complex numbers, multiplied by ``torch.polar(1, omega t)``; their gradient."""
    positions = (
        np.array([[0, 1, 2, 900, 4], [0, 1, 0, 1, 2]], np.int32) if packed else np.arange(3, 3 + T, dtype=np.int32)
    )
    omega = 10_000.0 ** (-torch.arange(0, H, 2, dtype=torch.float64) / H)

    def theirs(x):
        numbers = x.unflatten(-1, (2, H // 2)).transpose(-1, -2) if pairs == "halves" else x.unflatten(-1, (H // 2, 2))
        angle = torch.tensor(positions)[..., None].double() * omega
        turn = torch.polar(torch.ones_like(angle), angle).to(torch.complex64)[..., None, :]
        turned = torch.view_as_real(torch.view_as_complex(numbers.contiguous()) * turn)
        return (turned.transpose(-1, -2) if pairs == "halves" else turned).flatten(-2)

    ours = lambda x: functional.rotary(x, jnp.asarray(positions), pairs=pairs)
    agree(ours, theirs, array(B, T, N, H), tolerance=2e-4 if packed else 3e-5)  # 900 radians, in float32


def test_rms_norm():
    """The default epsilon there is that of the dtype, 1.2e-7; here it is 1e-6."""

    def theirs(x, scale):
        return torch.nn.functional.rms_norm(x, (D,), scale, eps=1e-6)

    x, scale = array(3, 4, D) * 5 + 2, array(D, seed=1)
    agree(functional.rms_norm, theirs, x, scale)
    small = array(3, D) * 1e-3
    default = torch.nn.RMSNorm(D)(torch.tensor(small))
    close(functional.rms_norm(jnp.asarray(small), jnp.ones(D), epsilon=float(np.finfo(np.float32).eps)), default)
    assert (
        np.abs(np.asarray(functional.rms_norm(jnp.asarray(small), jnp.ones(D))) - default.detach().numpy()).max() > 0.1
    )


@pytest.mark.parametrize("name", ["GLU", "GEGLU", "SwiGLU"])
def test_gated_feed_forward(name):
    """PyTorch's `glu` gates by the second half; the names of the gates are Shazeer's."""
    ours = {"GLU": jax.nn.sigmoid, "GEGLU": functional.gelu, "SwiGLU": jax.nn.silu}[name]

    def theirs(x, w_gate, w_in, w_out):
        if name == "GLU":
            inner = torch.nn.functional.glu(torch.cat([x @ w_in, x @ w_gate], -1))
        else:
            gate = {"GEGLU": torch.nn.functional.gelu, "SwiGLU": torch.nn.functional.silu}[name]
            inner = gate(x @ w_gate) * (x @ w_in)
        return inner @ w_out

    weights = [array(*shape, seed=i) for i, shape in enumerate([(D, 24), (D, 24), (24, D)], 1)]
    call = lambda *inputs: functional.gated_feed_forward(*inputs, activation=ours)
    agree(call, theirs, array(B, T, D), *weights, tolerance=1e-3)


def test_swiglu_is_the_default():
    x, w = jnp.asarray(array(T, D)), jnp.asarray(array(D, D, seed=1))
    got = functional.gated_feed_forward(x, w, w, jnp.eye(D))
    gate = torch.tensor(array(T, D)) @ torch.tensor(array(D, D, seed=1))
    close(got, torch.nn.functional.silu(gate) * gate, 1e-4)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_linear_loss(smoothing):
    """Value and gradients of inputs and table, without some labels."""
    labels = np.random.default_rng(0).integers(0, 9, (B, T)).astype(np.int32)
    where = np.array([[1, 1, 1, 1, 0], [1, 1, 0, 0, 0]], bool)
    counted = torch.tensor(np.where(where, labels, -100)).long()

    def theirs(x, table):
        logits = (x @ table.T).flatten(0, 1)
        return torch.nn.functional.cross_entropy(
            logits, counted.flatten(), label_smoothing=smoothing, reduction="sum", ignore_index=-100
        )

    loss = functional.CrossEntropy(smoothing)
    ours = lambda x, table: functional.linear_loss(
        x, table, jnp.asarray(labels), loss, where=jnp.asarray(where), chunk=4
    )[0]
    agree(ours, theirs, array(B, T, D), array(9, D, seed=1), tolerance=2e-4)


def bucket(ahead, num_buckets, max_distance, bidirectional):
    """Returns the bucket of Raffel et al. 2020, 2.1, from n-th powers of ``d >= exact (max / exact)^(k / n)``."""
    start = 0
    if bidirectional:
        num_buckets //= 2
        start = num_buckets if ahead > 0 else 0
    distance = abs(ahead) if bidirectional else max(-ahead, 0)
    exact = num_buckets // 2
    if distance < exact:
        return start + distance
    n = num_buckets - exact
    passed = sum(distance**n * exact**k >= max_distance**k * exact**n for k in range(1, n))
    return start + exact + passed


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize(("num_buckets", "max_distance"), [(32, 128), (32, 256), (16, 64), (64, 128), (8, 20)])
def test_t5_buckets(num_buckets, max_distance, bidirectional):
    """Every distance, including those where the logarithm is an integer."""
    ahead = np.arange(-400, 401, dtype=np.int32)
    want = [bucket(int(a), num_buckets, max_distance, bidirectional) for a in ahead]
    got = functional.t5_bucket(
        jnp.asarray(ahead), num_buckets=num_buckets, max_distance=max_distance, bidirectional=bidirectional
    )
    np.testing.assert_array_equal(got, want)


def test_t5_bias():
    """Attention of T5, which is unscaled, with the gradient of the table."""
    at = np.array([[bucket(s - t, 8, 6, True) for s in range(S)] for t in range(T)])
    agree(
        lambda q, k, v, t: functional.attention(q, k, v, bias=functional.t5_bias(t, max_distance=6), scale=1.0),
        lambda q, k, v, t: attention(q, k, v, attn_mask=t[torch.tensor(at)].permute(2, 0, 1)[None], scale=1.0),
        array(B, T, N, H),
        array(B, S, N, H, seed=1),
        array(B, S, N, H, seed=2),
        array(8, N, seed=3),
        tolerance=1e-4,
    )


@pytest.mark.parametrize("implementation", ["reference", "blockwise"])
def test_sinks_are_those_of_gpt_oss(implementation):
    """Output and gradients of windowed attention with sinks and grouped heads."""
    peer = pytest.importorskip("transformers.models.gpt_oss.modeling_gpt_oss", reason="transformers is not installed")
    query, key, value = array(B, S, N, H), array(B, S, 2, H, seed=1), array(B, S, 2, H, seed=2)
    mask = masks.window(2)
    ours = lambda q, k, v, sinks: functional.attention(
        q, k, v, mask=mask, sinks=sinks, scale=0.7, implementation=implementation
    )

    def theirs(q, k, v, sinks):
        layer = types.SimpleNamespace(num_key_value_groups=2, sinks=sinks, training=False)
        inputs = [x.transpose(1, 2) for x in (q, k, v)]
        return peer.eager_attention_forward(layer, *inputs, torch.tensor(np.asarray(mask.additive(S, S))), 0.7)[0]

    agree(ours, theirs, query, key, value, array(N, seed=3))
