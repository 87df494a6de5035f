"""``torch.nn.Transformer`` with tied embeddings and fused Adam, eager or compiled by ``torch.compile``."""

from __future__ import annotations

import math
import os

import torch

from benchmarks.sides.arrays import PAD, batch


class Translator(torch.nn.Module):
    def __init__(self, spec):
        super().__init__()
        self.d_model = spec["d_model"]
        self.table = torch.nn.Embedding(spec["vocab_size"], self.d_model)
        torch.nn.init.normal_(self.table.weight, std=self.d_model**-0.5)
        self.core = torch.nn.Transformer(
            self.d_model,
            spec["num_heads"],
            spec["num_layers"],
            spec["num_layers"],
            spec["d_ff"],
            dropout=spec["dropout"],
            batch_first=True,
        )
        self.drop = torch.nn.Dropout(spec["dropout"])
        longest = max(spec["source"], spec["target"])
        angles = torch.arange(longest)[:, None] / 10_000 ** (torch.arange(0, self.d_model, 2) / self.d_model)
        self.register_buffer("positions", torch.cat([angles.sin(), angles.cos()], 1))
        self.register_buffer("causal", torch.ones(spec["target"], spec["target"], dtype=torch.bool).triu(1))

    def forward(self, source, target):
        embed = lambda tokens: self.drop(
            self.table(tokens) * math.sqrt(self.d_model) + self.positions[: tokens.shape[1]]
        )
        padding = source == PAD
        x = self.core(
            embed(source),
            embed(target),
            tgt_mask=self.causal,
            src_key_padding_mask=padding,
            memory_key_padding_mask=padding,
            tgt_key_padding_mask=target == PAD,
            tgt_is_causal=True,
        )
        return torch.nn.functional.linear(x, self.table.weight)


torch.set_num_threads(len(os.sched_getaffinity(0)))


def timed(spec, call, inputs, upstream):
    """Returns a call that gives its output and, if the spec says so, the gradients of the inputs."""
    inputs = [x.requires_grad_(spec["backward"]) for x in inputs]

    def once():
        output = call(*inputs)
        return (output, *torch.autograd.grad(output, inputs, upstream)) if spec["backward"] else (output,)

    return once


def build(spec):
    torch.manual_seed(0)
    net = Translator(spec).train()
    run = torch.compile(net) if spec.get("compiled") else net
    optimizer = torch.optim.Adam(net.parameters(), lr=7e-4, betas=(0.9, 0.98), eps=1e-9, fused=True)
    tensors = {name: torch.from_numpy(x).long() for name, x in batch(spec).items()}
    source, target, labels = tensors["source"], tensors["target"][:, :-1].contiguous(), tensors["target"][:, 1:]
    loss = torch.nn.CrossEntropyLoss(ignore_index=PAD, label_smoothing=0.1)

    def once():
        optimizer.zero_grad(set_to_none=True)
        logits = run(source, target)
        value = loss(logits.reshape(-1, spec["vocab_size"]), labels.reshape(-1))
        value.backward()
        optimizer.step()
        return float(value)

    return once


def product(size):
    x = torch.ones(size, size)
    return lambda: x @ x


def versions():
    return f"torch {torch.__version__}"
