"""PyTorch's recurrent networks, one layer."""

from __future__ import annotations

import torch

from benchmarks.sides.arrays import recurrent_arrays, save
from benchmarks.sides.pytorch import product as product
from benchmarks.sides.pytorch import versions as versions


def build(spec):
    kind = {"rnn": torch.nn.RNN, "gru": torch.nn.GRU, "lstm": torch.nn.LSTM}[spec["cell"]]
    layer = kind(*spec["shape"][2:], batch_first=True)
    x, upstream, weights = recurrent_arrays(spec)
    with torch.no_grad():
        for own, weight in zip(layer.parameters(), weights, strict=True):
            own.copy_(torch.tensor(weight))
    x, upstream = torch.tensor(x, requires_grad=spec["backward"]), torch.tensor(upstream)

    def once():
        if not spec["backward"]:
            with torch.no_grad():
                return (layer(x)[0],)
        output = layer(x)[0]
        return output, *torch.autograd.grad(output, [x, *layer.parameters()], upstream)

    save(spec, [leaf.detach().numpy() for leaf in once()])
    return once
