"""PyTorch's conv1d, with inputs, outputs and gradients in its own layout ``[B, D, T]``."""

from __future__ import annotations

import torch

from benchmarks.sides.arrays import convolution_arrays, save
from benchmarks.sides.pytorch import product as product
from benchmarks.sides.pytorch import timed
from benchmarks.sides.pytorch import versions as versions


def build(spec):
    dilation = spec["shape"][4]
    x, kernel, bias, upstream = map(torch.tensor, convolution_arrays(spec["shape"]))
    x, upstream = (a.transpose(1, 2).contiguous() for a in (x, upstream))
    weight = kernel.permute(2, 1, 0).contiguous()
    reach = (weight.shape[2] - 1) * dilation

    def call(x, weight, bias):
        if spec["causal"]:
            return torch.nn.functional.conv1d(torch.nn.functional.pad(x, (reach, 0)), weight, bias, dilation=dilation)
        return torch.nn.functional.conv1d(x, weight, bias, padding="same", dilation=dilation)

    once = timed(spec, call, (x, weight, bias), upstream)
    output, *gradients = (a.detach().numpy() for a in once())
    ours = [output.transpose(0, 2, 1)]
    if gradients:
        d_x, d_weight, d_bias = gradients
        ours += [d_x.transpose(0, 2, 1), d_weight.transpose(2, 1, 0), d_bias]
    save(spec, ours)
    return once
