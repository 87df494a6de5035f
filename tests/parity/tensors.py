"""Arrays and tensors that the comparisons with PyTorch share."""

import jax
import numpy as np
import pytest

from tests.modules.small import quick

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install torch")


def array(*shape, seed=0):
    """Returns normal random numbers in float32."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def leaf(x):
    """Returns a tensor that collects a gradient."""
    return torch.tensor(np.asarray(x), requires_grad=True)


def close(ours, theirs, tolerance=3e-5):
    """Checks that an array and a tensor agree."""
    theirs = theirs.detach().numpy() if isinstance(theirs, torch.Tensor) else theirs
    np.testing.assert_allclose(ours, theirs, atol=tolerance, rtol=1e-4)


def agree(ours, theirs, *arrays, tolerance=3e-5):
    """Checks that values and gradients of `arrays` are the same."""
    leaves = [leaf(x) for x in arrays]
    expected = theirs(*leaves)
    upstream = array(*expected.shape, seed=9)
    expected.backward(torch.tensor(upstream))

    def pulled(upstream, *arrays):
        output, pull = jax.vjp(ours, *arrays)
        return output, pull(upstream)

    output, slopes = quick(pulled)(upstream, *arrays)
    close(output, expected, tolerance)
    for got, x in zip(slopes, leaves, strict=True):
        assert float(x.grad.abs().max()) > 1e-3
        close(got, x.grad, tolerance)


def fill(parameter, value):
    """Sets a PyTorch parameter."""
    with torch.no_grad():
        parameter.copy_(torch.tensor(np.array(value)))


def fill_attention(theirs, params):
    """Copies self-attention into MultiheadAttention: three stacked [D, D] matrices that multiply from the left."""
    kernel, bias, d = params["kernel"], params["bias"], theirs.embed_dim  # [D, N, 3, H], [N, 3, H]
    fill(theirs.in_proj_weight, kernel.transpose(2, 1, 3, 0).reshape(3 * d, d))
    fill(theirs.in_proj_bias, bias.transpose(1, 0, 2).reshape(3 * d))
    fill(theirs.out_proj.weight, params["output"]["kernel"].reshape(d, d).T)
    fill(theirs.out_proj.bias, params["output"]["bias"])


def fill_cross(theirs, params):
    """Copies cross-attention into MultiheadAttention."""
    d = theirs.embed_dim
    query, both = params["query"].reshape(d, d), params["key_value"]
    weights = [query.T, both[:, :, 0].reshape(d, d).T, both[:, :, 1].reshape(d, d).T]
    fill(theirs.in_proj_weight, np.concatenate(weights))
    biases = [params["query_bias"], params["key_value_bias"][:, 0], params["key_value_bias"][:, 1]]
    fill(theirs.in_proj_bias, np.concatenate([np.asarray(b).reshape(d) for b in biases]))
    fill(theirs.out_proj.weight, params["output"]["kernel"].reshape(d, d).T)
    fill(theirs.out_proj.bias, params["output"]["bias"])


def fill_block(theirs, params, cross=False):
    """Copies a block into a TransformerEncoderLayer or, with cross-attention, a TransformerDecoderLayer."""
    fill_attention(theirs.self_attn, params["attention"])
    norms = [("norm1", "attention_norm"), ("norm2", "feed_forward_norm")]
    if cross:
        fill_cross(theirs.multihead_attn, params["cross"])
        norms = [("norm1", "attention_norm"), ("norm2", "cross_norm"), ("norm3", "feed_forward_norm")]
    for name, ours in (("linear1", "up"), ("linear2", "down")):
        fill(getattr(theirs, name).weight, params["feed_forward"][ours]["kernel"].T)
        fill(getattr(theirs, name).bias, params["feed_forward"][ours]["bias"])
    for name, ours in norms:
        fill(getattr(theirs, name).weight, params[ours]["scale"])
        fill(getattr(theirs, name).bias, params[ours]["bias"])
