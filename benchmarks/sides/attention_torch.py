"""PyTorch's scaled_dot_product_attention."""

from __future__ import annotations

import functools

import torch

from benchmarks.sides.arrays import attention_arrays, save, valid
from benchmarks.sides.pytorch import product as product
from benchmarks.sides.pytorch import timed
from benchmarks.sides.pytorch import versions as versions


def build(spec):
    dtype = getattr(torch, spec["dtype"])
    arrays = (x.transpose(0, 2, 1, 3).copy() for x in attention_arrays(spec["shape"]))
    *inputs, upstream = (torch.tensor(x, dtype=dtype) for x in arrays)
    causal = spec["mask"] == "causal"
    mask = None if causal else torch.tensor(valid(spec["shape"]))[:, None, None, :]
    attend = functools.partial(torch.nn.functional.scaled_dot_product_attention, attn_mask=mask, is_causal=causal)
    once = timed(spec, attend, inputs, upstream)
    found = (x.detach().float().numpy().transpose(0, 2, 1, 3) for x in once())
    save(spec, [x[:, :: max(1, x.shape[1] // 512)] for x in found])
    return once
