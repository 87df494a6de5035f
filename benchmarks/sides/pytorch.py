"""``torch.nn.Transformer`` with tied embeddings, fused Adam; eager, or through ``torch.compile``."""

from __future__ import annotations

import math
import os

import torch

from benchmarks.sides.data import PAD, batch


class Translator(torch.nn.Module):
    def __init__(self, spec):
        super().__init__()
        self.width = spec["width"]
        self.table = torch.nn.Embedding(spec["vocab"], self.width)
        torch.nn.init.normal_(self.table.weight, std=self.width**-0.5)
        self.core = torch.nn.Transformer(
            self.width,
            spec["heads"],
            spec["depth"],
            spec["depth"],
            spec["hidden"],
            dropout=spec["dropout"],
            batch_first=True,
        )
        self.drop = torch.nn.Dropout(spec["dropout"])
        longest = max(spec["source"], spec["target"])
        angles = torch.arange(longest)[:, None] / 10_000 ** (torch.arange(0, self.width, 2) / self.width)
        self.register_buffer("positions", torch.cat([angles.sin(), angles.cos()], 1))
        self.register_buffer("later", torch.ones(spec["target"], spec["target"], dtype=torch.bool).triu(1))

    def forward(self, source, target):
        embed = lambda tokens: self.drop(self.table(tokens) * math.sqrt(self.width) + self.positions[: tokens.shape[1]])
        pad = source == PAD
        x = self.core(
            embed(source),
            embed(target),
            tgt_mask=self.later,
            src_key_padding_mask=pad,
            memory_key_padding_mask=pad,
            tgt_key_padding_mask=target == PAD,
            tgt_is_causal=True,
        )
        return torch.nn.functional.linear(x, self.table.weight)


def build(spec):
    torch.manual_seed(0)
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    net = Translator(spec).train()
    run = torch.compile(net) if spec.get("compiled") else net
    optimizer = torch.optim.Adam(net.parameters(), lr=7e-4, betas=(0.9, 0.98), eps=1e-9, fused=True)
    given = {name: torch.from_numpy(x).long() for name, x in batch(spec).items()}
    source, target, labels = given["source"], given["target"][:, :-1].contiguous(), given["target"][:, 1:]
    loss = torch.nn.CrossEntropyLoss(ignore_index=PAD, label_smoothing=0.1)

    def once():
        optimizer.zero_grad(set_to_none=True)
        logits = run(source, target)
        value = loss(logits.reshape(-1, spec["vocab"]), labels.reshape(-1))
        value.backward()
        optimizer.step()
        return float(value)

    return once


def product(size):
    x = torch.ones(size, size)
    return lambda: x @ x


def versions():
    return f"torch {torch.__version__}"
