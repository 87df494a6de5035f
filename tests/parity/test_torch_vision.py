"""Models of images against PyTorch's layers and Hugging Face's ViT, with copied weights: values and gradients."""

import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer import functional, models, modules, pure
from jaxformer.config import kind_of
from jaxformer.models import choices
from tests.modules.small import built, drawn
from tests.parity.tensors import agree, array, close

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install torch")
pytestmark = pytest.mark.parity


def nchw(x):
    return torch.tensor(np.asarray(x)).permute(0, 3, 1, 2)


def nhwc(x):
    return x.permute(0, 2, 3, 1)


def weight(kernel):
    """A kernel of this library as a ``Conv2d`` has it."""
    return torch.tensor(np.asarray(kernel).transpose(3, 2, 0, 1))


@pytest.mark.parametrize(
    ("taps", "stride", "dilation", "padding"),
    [(3, 1, 1, "same"), (3, 2, 1, "same"), (1, 2, 1, "valid"), (2, 2, 1, "valid"), (3, 1, 2, "same")],
)
def test_a_convolution_of_images(taps, stride, dilation, padding):
    reach = dilation * (taps - 1) // 2 if padding == "same" else 0

    def theirs(x, kernel, bias):
        options = {"stride": stride, "dilation": dilation, "padding": reach}
        return nhwc(torch.nn.functional.conv2d(x.permute(0, 3, 1, 2), kernel.permute(3, 2, 0, 1), bias, **options))

    options = {"stride": stride, "dilation": dilation, "padding": padding}
    ours = lambda x, kernel, bias: functional.convolution(x, kernel, bias, **options)
    agree(ours, theirs, array(2, 9, 8, 4), array(taps, taps, 4, 5, seed=1), array(5, seed=2), tolerance=1e-4)


@pytest.mark.parametrize(("size", "stride"), [(2, 2), (3, 2), (3, 1)])
def test_pooling(size, stride):
    x = array(2, 9, 8, 4)
    for ours, theirs in (
        (functional.max_pool, torch.nn.functional.max_pool2d),
        (functional.average_pool, torch.nn.functional.avg_pool2d),
    ):
        close(ours(jnp.asarray(x), size, stride=stride), nhwc(theirs(nchw(x), size, stride)))
    line = torch.tensor(x[:, :, 0]).transpose(1, 2)
    close(functional.max_pool(jnp.asarray(x[:, :, 0]), 2), torch.nn.functional.max_pool1d(line, 2).transpose(1, 2))


def convolve(x, params, stride=1):
    kernel = params["kernel"]
    bias = torch.tensor(np.asarray(params["bias"])) if "bias" in params else None
    return torch.nn.functional.conv2d(x, weight(kernel), bias, stride=stride, padding=kernel.shape[0] // 2)


def normalize(x, params):
    scale, bias = (torch.tensor(np.asarray(params[name])) for name in ("scale", "bias"))
    return torch.nn.functional.layer_norm(x.permute(0, 2, 3, 1), (len(scale),), scale, bias).permute(0, 3, 1, 2)


def attend(x, params, gain):
    """SAGAN's layer as it is written in PyTorch, or with logits divided by sqrt(C') and a plain sum."""
    kernel, bias = (torch.tensor(np.asarray(params["attention"][name])) for name in ("kernel", "bias"))
    dim = kernel.shape[-1]
    query, key, value = (
        torch.nn.functional.conv2d(x, kernel[:, 0, i].T[:, :, None, None], bias[0, i]).flatten(2) for i in range(3)
    )
    weights = torch.softmax(query.transpose(1, 2) @ key / (1 if gain else dim**0.5), -1)
    mixed = (value @ weights.transpose(1, 2)).unflatten(2, x.shape[2:])
    output = params["attention"]["output"]
    back = torch.tensor(np.asarray(output["kernel"]))[0].T[:, :, None, None]
    y = torch.nn.functional.conv2d(mixed, back, torch.tensor(np.asarray(output["bias"])))
    return x + (float(params["gain"]) if gain else 1) * y


@pytest.mark.parametrize(
    "attention", [None, choices.ScaledAttention(d_attention=2), choices.GainAttention(d_attention=2)], ids=kind_of
)
def test_a_residual_network(attention):
    config = models.ResidualNetworkConfig(
        widths=(4, 6),
        num_blocks=2,
        num_classes=3,
        attention=attention,
    )
    net = pure(models.ResidualNetwork, config)
    params, images = drawn(net.shapes), array(2, 8, 8, 3)
    x = convolve(nchw(images), params["stem"])
    for stage in (1, 2):
        for i in (1, 2):
            block = params["blocks"][f"{stage}_{i}"]
            y = torch.relu(normalize(x, block["norm"]))
            stride = 2 if (stage, i) == (2, 1) else 1
            skip = convolve(y, block["skip"], stride) if "skip" in block else x
            y = convolve(y, block["first"], stride)
            x = skip + convolve(torch.relu(normalize(y, block["second_norm"])), block["second"])
    if attention is not None:
        x = attend(x, params["attention"], isinstance(attention, choices.GainAttention))
    pooled = torch.relu(normalize(x, params["norm"])).mean((2, 3))
    logits = pooled @ torch.tensor(np.asarray(params["output"]["kernel"])) + torch.tensor(
        np.asarray(params["output"]["bias"])
    )
    close(net.apply(params, jnp.asarray(images)), logits, 1e-4)


@pytest.mark.parametrize("new_grid", [(8, 8), (14, 14), (3, 5), (7, 7)])
def test_positions_by_bicubic_interpolation(new_grid):
    table = array(1 + 7 * 7, 6)
    grid = torch.tensor(table[1:]).reshape(1, 7, 7, 6).permute(0, 3, 1, 2)
    theirs = torch.nn.functional.interpolate(grid, size=new_grid, mode="bicubic", align_corners=False)
    ours = functional.resize_grid_positions(jnp.asarray(table), (7, 7), new_grid, num_class_rows=1, method="bicubic")
    close(ours[1:], theirs.permute(0, 2, 3, 1).reshape(-1, 6))


def test_patches_are_one_convolution():
    module, params = built(lambda rngs: modules.PatchEmbeddings((8, 12), 4, 6, class_vector=False, rngs=rngs))
    images, projection = array(2, 8, 12, 3), params["projection"]
    bias = torch.tensor(np.asarray(projection["bias"]))
    theirs = torch.nn.functional.conv2d(nchw(images), weight(projection["kernel"]), bias, stride=4)
    expected = theirs.flatten(2).transpose(1, 2) + torch.tensor(np.asarray(params["positions"]["table"]))
    close(module.apply(params, jnp.asarray(images)), expected)
