"""PyTorch's conv1d, with inputs, outputs and gradients in its own layout ``[B, D, T]``."""

from __future__ import annotations

import os

import torch

from benchmarks.sides.convolution_data import arrays, save
from benchmarks.sides.pytorch import product as product
from benchmarks.sides.pytorch import versions as versions


def build(spec):
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    dilation = spec["shape"][4]
    x, kernel, bias, upstream = map(torch.tensor, arrays(spec["shape"]))
    x, upstream = (a.transpose(1, 2).contiguous() for a in (x, upstream))
    weight = kernel.permute(2, 1, 0).contiguous()
    inputs = [a.requires_grad_(spec["backward"]) for a in (x, weight, bias)]
    reach = (weight.shape[2] - 1) * dilation

    def once():
        x, weight, bias = inputs
        if spec["causal"]:
            output = torch.nn.functional.conv1d(torch.nn.functional.pad(x, (reach, 0)), weight, bias, dilation=dilation)
        else:
            output = torch.nn.functional.conv1d(x, weight, bias, padding="same", dilation=dilation)
        return (output, *torch.autograd.grad(output, inputs, upstream)) if spec["backward"] else (output,)

    output, *gradients = (a.detach().numpy() for a in once())
    ours = [output.transpose(0, 2, 1)]
    if gradients:
        d_x, d_weight, d_bias = gradients
        ours += [d_x.transpose(0, 2, 1), d_weight.transpose(2, 1, 0), d_bias]
    save(spec, ours)
    return once
