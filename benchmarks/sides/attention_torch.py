"""PyTorch's scaled_dot_product_attention."""

from __future__ import annotations

import os

import torch

from benchmarks.sides.attention_data import arrays, save, valid
from benchmarks.sides.pytorch import product as product
from benchmarks.sides.pytorch import versions as versions


def build(spec):
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    kind = getattr(torch, spec["dtype"])
    *given, upstream = (torch.tensor(x.transpose(0, 2, 1, 3).copy(), dtype=kind) for x in arrays(spec["shape"]))
    given = [x.requires_grad_(spec["backward"]) for x in given]
    causal = spec["mask"] == "causal"
    mask = None if causal else torch.tensor(valid(spec["shape"]))[:, None, None, :]

    def once():
        output = torch.nn.functional.scaled_dot_product_attention(*given, attn_mask=mask, is_causal=causal)
        return (output, *torch.autograd.grad(output, given, upstream)) if spec["backward"] else (output,)

    save(spec, [x.detach().float().numpy().transpose(0, 2, 1, 3) for x in once()])
    return once
