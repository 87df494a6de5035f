"""PyTorch's training step of the same vision Transformer with the same weights, and its convolution."""

from __future__ import annotations

import functools

import torch
from torch.nn import functional as F

from benchmarks.sides.arrays import image_convolution_arrays, images, save, weights
from benchmarks.sides.pytorch import product as product
from benchmarks.sides.pytorch import timed
from benchmarks.sides.pytorch import versions as versions


def build(spec):
    return {"step": training_step, "convolution": convolution}[spec["work"]](spec)


def shapes(spec):
    """Returns the shapes of the parameters by their names in this library."""
    d, heads, hidden, layers = (spec[name] for name in ("d_model", "num_heads", "d_ff", "num_layers"))
    patch, dim = spec["patch_size"], d // heads
    found = {
        "embeddings/class_vector": (d,),
        "embeddings/positions/table": (1 + (spec["image_size"] // patch) ** 2, d),
        "embeddings/projection/bias": (d,),
        "embeddings/projection/kernel": (patch, patch, spec["num_channels"], d),
        "norm/bias": (d,),
        "norm/scale": (d,),
    }
    block = {
        "attention/bias": (heads, 3, dim),
        "attention/kernel": (d, heads, 3, dim),
        "attention/output/bias": (d,),
        "attention/output/kernel": (heads, dim, d),
        "feed_forward/up/bias": (hidden,),
        "feed_forward/up/kernel": (d, hidden),
        "feed_forward/down/bias": (d,),
        "feed_forward/down/kernel": (hidden, d),
    }
    for norm in ("attention_norm", "feed_forward_norm"):
        block |= {f"{norm}/bias": (d,), f"{norm}/scale": (d,)}
    found |= {f"stack/layers/{name}": (layers, *shape) for name, shape in block.items()}
    output = {"output/bias": (spec["num_classes"],), "output/kernel": (d, spec["num_classes"])}
    return {f"encoder/{name}": shape for name, shape in found.items()} | output


def linear(weight, bias):
    layer = torch.nn.Linear(*weight.shape)
    with torch.no_grad():
        layer.weight.copy_(weight.T)
        layer.bias.copy_(bias)
    return layer


def norm(params, name):
    layer = torch.nn.LayerNorm(len(params[f"{name}/scale"]))
    with torch.no_grad():
        layer.weight.copy_(params[f"{name}/scale"])
        layer.bias.copy_(params[f"{name}/bias"])
    return layer


class Block(torch.nn.Module):
    def __init__(self, params, spec):
        super().__init__()
        self.heads, self.rate = spec["num_heads"], spec["dropout"]
        kernel, bias = params["attention/kernel"], params["attention/bias"]
        self.attention_norm, self.norm = norm(params, "attention_norm"), norm(params, "feed_forward_norm")
        self.inside = linear(kernel.transpose(1, 2).flatten(1), bias.transpose(0, 1).flatten())
        self.outside = linear(params["attention/output/kernel"].flatten(0, 1), params["attention/output/bias"])
        self.up = linear(params["feed_forward/up/kernel"], params["feed_forward/up/bias"])
        self.down = linear(params["feed_forward/down/kernel"], params["feed_forward/down/bias"])

    def forward(self, x):
        projected = self.inside(self.attention_norm(x)).unflatten(-1, (3, self.heads, -1))
        query, key, value = projected.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(query, key, value)
        x = x + F.dropout(self.outside(mixed.transpose(1, 2).flatten(2)), self.rate)
        return x + F.dropout(self.down(F.gelu(self.up(self.norm(x)))), self.rate)


class VisionTransformer(torch.nn.Module):
    def __init__(self, spec):
        super().__init__()
        params = {name: torch.tensor(value) for name, value in weights(shapes(spec)).items()}
        kernel = params["encoder/embeddings/projection/kernel"]
        self.patches = torch.nn.Conv2d(kernel.shape[2], kernel.shape[3], kernel.shape[0], stride=kernel.shape[0])
        with torch.no_grad():
            self.patches.weight.copy_(kernel.permute(3, 2, 0, 1))
            self.patches.bias.copy_(params["encoder/embeddings/projection/bias"])
        self.first = torch.nn.Parameter(params["encoder/embeddings/class_vector"].clone())
        self.positions = torch.nn.Parameter(params["encoder/embeddings/positions/table"].clone())
        start = "encoder/stack/layers/"
        stacked = {name.removeprefix(start): x for name, x in params.items() if name.startswith(start)}
        blocks = [Block({name: x[i] for name, x in stacked.items()}, spec) for i in range(spec["num_layers"])]
        self.blocks = torch.nn.Sequential(*blocks)
        self.norm, self.rate = norm(params, "encoder/norm"), spec["dropout"]
        self.output = linear(params["output/kernel"], params["output/bias"])

    def forward(self, pixels):
        x = self.patches(pixels.permute(0, 3, 1, 2).float() / 127.5 - 1).flatten(2).transpose(1, 2)
        x = torch.cat([self.first.expand(len(x), 1, -1), x], 1) + self.positions
        x = self.norm(self.blocks(F.dropout(x, self.rate)))
        return self.output(F.dropout(x[:, 0], self.rate))


def training_step(spec):
    torch.manual_seed(0)
    net = VisionTransformer(spec).train()
    run = torch.compile(net) if spec.get("compiled") else net
    decayed = lambda name: (name.endswith("weight") and "norm" not in name) or name in ("first", "positions")
    groups = [
        {"params": [p for name, p in net.named_parameters() if decayed(name) == wanted], "weight_decay": rate}
        for wanted, rate in ((True, 0.05), (False, 0.0))
    ]
    optimizer = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.99), eps=1e-8, fused=True)
    pixels, labels = map(torch.tensor, images(spec))

    def once():
        optimizer.zero_grad(set_to_none=True)
        loss = F.cross_entropy(run(pixels), labels.long())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        return float(loss.detach())

    save(spec, [[once() for _ in range(3)]])
    return once


def convolution(spec):
    *_, taps, stride = spec["shape"]
    padding = 0 if taps == stride else taps // 2
    x, kernel, upstream = map(torch.tensor, image_convolution_arrays(spec["shape"]))
    order = torch.channels_last if spec["channels_last"] else torch.contiguous_format
    x, upstream = (a.permute(0, 3, 1, 2).contiguous(memory_format=order) for a in (x, upstream))
    weight = kernel.permute(3, 2, 0, 1).contiguous(memory_format=order)
    once = timed(spec, functools.partial(F.conv2d, stride=stride, padding=padding), (x, weight), upstream)
    output, *gradients = (a.detach() for a in once())
    found = [output.permute(0, 2, 3, 1)]
    if gradients:
        found += [gradients[0].permute(0, 2, 3, 1), gradients[1].permute(2, 3, 1, 0)]
    save(spec, [a.numpy() for a in found])
    return once
