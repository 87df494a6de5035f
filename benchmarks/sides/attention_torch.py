"""PyTorch's scaled_dot_product_attention."""

from __future__ import annotations

import os

import torch

from benchmarks.sides.attention_data import arrays, save, valid
from benchmarks.sides.pytorch import product as product
from benchmarks.sides.pytorch import versions as versions


def build(spec):
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    dtype = getattr(torch, spec["dtype"])
    *inputs, upstream = (torch.tensor(x.transpose(0, 2, 1, 3).copy(), dtype=dtype) for x in arrays(spec["shape"]))
    inputs = [x.requires_grad_(spec["backward"]) for x in inputs]
    causal = spec["mask"] == "causal"
    mask = None if causal else torch.tensor(valid(spec["shape"]))[:, None, None, :]

    def once():
        output = torch.nn.functional.scaled_dot_product_attention(*inputs, attn_mask=mask, is_causal=causal)
        return (output, *torch.autograd.grad(output, inputs, upstream)) if spec["backward"] else (output,)

    save(spec, [x.detach().float().numpy().transpose(0, 2, 1, 3) for x in once()])
    return once
