"""Convolutions against PyTorch's, with copied weights: values and gradients, of one layer and of a dilated stack."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer import functional, modules
from tests.modules.small import built
from tests.parity.tensors import agree, array, close, leaf

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install torch")
pytestmark = pytest.mark.parity

B, T, D, E = 2, 11, 4, 5


def copied(layer):
    """The parameters of a ``Conv1d`` in the layout of this library."""
    return {"kernel": jnp.asarray(kernel(layer.weight)), "bias": jnp.asarray(layer.bias.detach().numpy())}


def kernel(tensor):
    return tensor.detach().numpy().transpose(2, 1, 0)


def padded(x, taps, dilation, causal):
    """Zeros before the start and after the end of ``[B, D, T]``; without `causal`, those of ``padding="same"``."""
    reach = (taps - 1) * dilation
    before = reach if causal else reach // 2
    return torch.nn.functional.pad(x, (before, reach - before))


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("taps", "dilation"), [(1, 1), (3, 1), (4, 1), (2, 3), (3, 4)])
def test_a_layer(taps, dilation, causal):
    layer = functools.partial(torch.nn.functional.conv1d, dilation=dilation)

    def theirs(x, kernel, bias):
        output = layer(padded(x.transpose(1, 2), taps, dilation, causal), kernel.permute(2, 1, 0), bias)
        return output.transpose(1, 2)

    def same(x, kernel, bias):
        return layer(x.transpose(1, 2), kernel.permute(2, 1, 0), bias, padding="same").transpose(1, 2)

    ours = lambda x, kernel, bias: functional.convolution(x, kernel, bias, dilation=dilation, causal=causal)
    arrays = array(B, T, D), array(taps, D, E, seed=1), array(E, seed=2)
    agree(ours, theirs, *arrays)
    if not causal:  # PyTorch's own name for this padding
        close(ours(*map(jnp.asarray, arrays)), same(*map(torch.tensor, arrays)))


@pytest.mark.parametrize("causal", [False, True])
def test_a_dilated_stack_with_padding(causal):
    """Positions that are padding are zeros for every layer; their outputs are left out of the comparison."""
    torch.manual_seed(0)
    layers = [torch.nn.Conv1d(D, D, 3, dilation=3**i) for i in range(3)]
    options = {"growth": 3, "causal": causal}
    module, params = built(lambda rngs: modules.ConvolutionStack(D, 3, rngs=rngs, **options))
    params = {"layers": {f"{i}": copied(layer) for i, layer in enumerate(layers)}}
    x, upstream = array(B, T, D), array(B, T, D, seed=1)
    real = np.arange(T) < np.array([[T], [6]])
    keep = torch.tensor(real[:, None].astype(np.float32))
    tensor = leaf(x)
    y = tensor.transpose(1, 2) * keep
    for i, layer in enumerate(layers):
        y = y + torch.relu(layer(padded(y, 3, 3**i, causal))) * keep
    y = y.transpose(1, 2)
    (y * torch.tensor(upstream)).sum().backward()
    run = lambda params, x: module.net.apply(params, x, valid=jnp.asarray(real))
    ours, pull = jax.vjp(run, params, jnp.asarray(x))
    gradients, d_x = pull(jnp.asarray(upstream))
    close(ours, y)
    close(d_x, tensor.grad)
    for i, layer in enumerate(layers):
        close(gradients["layers"][f"{i}"]["kernel"], kernel(layer.weight.grad))
        close(gradients["layers"][f"{i}"]["bias"], layer.bias.grad)
