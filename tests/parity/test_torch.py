"""Forward values and gradients against PyTorch, with the same weights in both."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer import functional, masks, modules
from tests.modules.small import built, drawn
from tests.parity.tensors import agree, array, close, fill_attention, fill_block, leaf

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install torch")
pytestmark = pytest.mark.parity

D, N, F, B, T, S = 16, 4, 24, 2, 5, 7
VALID = np.array([[1, 1, 1, 1, 1, 1, 0], [1, 1, 1, 0, 0, 0, 0]], bool)


def block(arrange, activation, cross=False):
    def make(rngs):
        return modules.Block(
            modules.SelfAttention(D, N, bias=True, rngs=rngs),
            modules.FeedForward(D, F, activation=activation, rngs=rngs),
            cross=modules.CrossAttention(D, N, bias=True, rngs=rngs) if cross else None,
            norm=lambda: modules.LayerNorm(D),
            arrangement=arrange,
        )

    return built(make)


def test_multihead_attention():
    """The full layer with biases, padding in PyTorch's polarity; gradients of input and fused kernel."""
    net, params = built(lambda rngs: modules.SelfAttention(D, N, bias=True, rngs=rngs))
    theirs = torch.nn.MultiheadAttention(D, N, batch_first=True)
    fill_attention(theirs, params)
    x = array(B, S, D)
    inputs = leaf(x)
    expected, weights = theirs(inputs, inputs, inputs, key_padding_mask=torch.tensor(~VALID))
    expected.square().sum().backward()
    close(net.apply(params, jnp.asarray(x), mask=masks.padding(VALID)), expected)
    query, key, _ = net.call(modules.SelfAttention.project, params, jnp.asarray(x))
    ours = functional.attention_weights(query, key, mask=masks.padding(VALID))
    close(ours.mean(1), weights)  # theirs are averaged over heads
    loss = lambda p, x: jnp.sum(net.net.apply(p, x, mask=masks.padding(VALID)) ** 2)
    slope, slope_x = jax.grad(loss, (0, 1))(params, jnp.asarray(x))
    close(slope_x, inputs.grad, 1e-3)
    close(slope["kernel"].transpose(2, 1, 3, 0).reshape(3 * D, D), theirs.in_proj_weight.grad, 2e-3)
    close(slope["bias"].transpose(1, 0, 2).reshape(-1), theirs.in_proj_bias.grad, 2e-3)
    close(slope["output"]["kernel"].reshape(D, D).T, theirs.out_proj.weight.grad, 2e-3)


@pytest.mark.parametrize(("norm_first", "activation"), [(False, "relu"), (True, "gelu")])
def test_encoder_layer(norm_first, activation):
    """B11: d_model, nhead, dim_feedforward; both orders of the norm."""
    arrange = functional.pre_norm if norm_first else functional.post_norm
    net, params = block(arrange, {"relu": functional.relu, "gelu": functional.gelu}[activation])
    theirs = torch.nn.TransformerEncoderLayer(
        D, N, dim_feedforward=F, dropout=0.0, activation=activation, batch_first=True, norm_first=norm_first
    )
    fill_block(theirs, params)
    x = array(B, S, D)
    inputs = leaf(x)
    expected = theirs(inputs, src_key_padding_mask=torch.tensor(~VALID))
    real = VALID[..., None].astype(np.float32)  # they may leave padded rows empty
    (expected * torch.tensor(real)).square().sum().backward()
    output = net.apply(params, jnp.asarray(x), mask=masks.padding(VALID))
    close(output * real, expected * torch.tensor(real))
    loss = lambda x: jnp.sum(net.net.apply(params, x, mask=masks.padding(VALID)) ** 2 * real)
    close(jax.grad(loss)(jnp.asarray(x)), inputs.grad, 1e-3)


@pytest.mark.parametrize(("norm_first", "activation"), [(True, "relu"), (False, "gelu")])
def test_decoder_layer(norm_first, activation):
    """Causal self-attention, cross-attention over a padded memory; gradients of target and memory."""
    arrange = functional.pre_norm if norm_first else functional.post_norm
    net, params = block(arrange, {"relu": functional.relu, "gelu": functional.gelu}[activation], cross=True)
    theirs = torch.nn.TransformerDecoderLayer(
        D, N, dim_feedforward=F, dropout=0.0, activation=activation, batch_first=True, norm_first=norm_first
    )
    fill_block(theirs, params, cross=True)
    x, memory = array(B, T, D), array(B, S, D, seed=1)
    inputs = [leaf(x), leaf(memory)]
    blocked = torch.tensor(~np.tri(T, dtype=bool))
    expected = theirs(*inputs, tgt_mask=blocked, memory_key_padding_mask=torch.tensor(~VALID))
    expected.square().sum().backward()
    both = {"mask": masks.from_torch(blocked.numpy()), "memory_mask": masks.padding(VALID)}
    close(net.apply(params, jnp.asarray(x), jnp.asarray(memory), **both), expected)
    loss = lambda x, m: jnp.sum(net.net.apply(params, x, m, **both) ** 2)
    for got, y in zip(jax.grad(loss, (0, 1))(jnp.asarray(x), jnp.asarray(memory)), inputs, strict=True):
        close(got, y.grad, 2e-3)


def test_layer_norm():
    theirs = lambda x, scale, shift: torch.nn.functional.layer_norm(x, (D,), scale, shift, eps=1e-5)
    agree(functional.layer_norm, theirs, array(3, 4, D) * 5 + 2, array(D, seed=1), array(D, seed=2))


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_cross_entropy(smoothing):
    """PyTorch's ignore_index is `where` here, and its smoothing is the same."""
    logits, labels = array(6, 9) * 3, np.array([0, 8, 3, 2, 5, 1])
    counted = np.array([1, 1, 0, 1, 1, 0], bool)
    loss = torch.nn.CrossEntropyLoss(label_smoothing=smoothing, reduction="sum", ignore_index=-100)
    theirs = lambda x: loss(x, torch.tensor(np.where(counted, labels, -100)))
    ours = lambda x: functional.cross_entropy(
        x, jnp.asarray(labels, jnp.int32), where=jnp.asarray(counted), smoothing=smoothing
    )[0]
    agree(ours, theirs, logits)


@pytest.mark.parametrize(("ours", "approximate"), [(functional.gelu, "none"), (functional.gelu_tanh, "tanh")])
def test_gelu(ours, approximate):
    x = np.linspace(-4, 4, 200, dtype=np.float32)
    close(ours(jnp.asarray(x)), torch.nn.functional.gelu(torch.tensor(x), approximate=approximate), 2e-6)


def test_shapes_of_parameters_agree():
    """The number of parameters equals that of PyTorch's encoder layer, including biases."""
    theirs = torch.nn.TransformerEncoderLayer(D, N, dim_feedforward=F)
    net, _ = block(functional.post_norm, functional.relu)
    ours = sum(x.size for x in jax.tree.leaves(drawn(net.shapes)))
    assert ours == sum(p.numel() for p in theirs.parameters())
