"""The same training in PyTorch, by `torch.nn`'s Transformer layers: an independent implementation."""

from __future__ import annotations

import math
import os
import pathlib
import time
from typing import Any

import numpy as np

from experiments.command import Stopped
from jaxformer import functional
from jaxformer.data.batch import Batch
from jaxformer.errors import ConfigError
from jaxformer.models import EncoderDecoderConfig
from jaxformer.tasks.translation import TASK, TranslationConfig
from jaxformer.training.optimizers import make_schedule

try:
    import torch
except ImportError as error:
    raise ConfigError("--torch needs PyTorch; install it, or leave out --torch") from error

from torch import nn


class Translator(nn.Module):
    """An encoder-decoder with tied embeddings, and dropout where `EncoderDecoderConfig.dropout` has it."""

    def __init__(self, config: EncoderDecoderConfig, vocab_size: int, longest: int):
        super().__init__()
        d_model, shape = config.d_model, (config.d_model, config.num_heads, config.d_ff, config.dropout)
        self.table = nn.Embedding(vocab_size, d_model)
        encoder, decoder = nn.TransformerEncoderLayer, nn.TransformerDecoderLayer
        layers = config.num_encoder_layers, config.num_decoder_layers
        self.encoder = nn.ModuleList(encoder(*shape, batch_first=True) for _ in range(layers[0]))
        self.decoder = nn.ModuleList(decoder(*shape, batch_first=True) for _ in range(layers[1]))
        self.drop = nn.Dropout(config.dropout)
        for name, parameter in self.named_parameters():
            if parameter.dim() > 1:  # attention's is one [3D, D] matrix for queries, keys and values
                nn.init.xavier_uniform_(parameter)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)
        nn.init.normal_(self.table.weight, std=d_model**-0.5)
        for layer in (*self.encoder, *self.decoder):  # residuals alone
            layer.dropout = nn.Identity()
            for attention in (getattr(layer, "self_attn", None), getattr(layer, "multihead_attn", None)):
                if attention is not None:
                    attention.dropout = 0.0
        places = functional.sinusoidal(np.arange(longest), dim=d_model)
        self.register_buffer("positions", torch.from_numpy(np.array(places)))
        self.register_buffer("causal", torch.ones(longest, longest, dtype=torch.bool).triu(1))

    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.table(tokens) * math.sqrt(self.table.embedding_dim)
        return self.drop(x + self.positions[: tokens.shape[1]])

    def forward(self, source, source_valid, target, target_valid) -> torch.Tensor:
        x, y = self.embed(source), self.embed(target)
        for layer in self.encoder:
            x = layer(x, src_key_padding_mask=~source_valid)
        masks = {"tgt_key_padding_mask": ~target_valid, "memory_key_padding_mask": ~source_valid}
        causal = self.causal[: target.shape[1], : target.shape[1]]
        for layer in self.decoder:
            y = layer(y, x, tgt_mask=causal, **masks)
        return nn.functional.linear(y, self.table.weight)


def train(config: TranslationConfig, folder: pathlib.Path, end: float) -> tuple[dict[str, float], float]:
    """Trains on the batches of a configuration.

    Returns:
      The validation loss in nats a token by steps, and the seconds.

    Raises:
      Stopped: the time was up; the training starts again.
    """
    began = time.monotonic()
    folder.mkdir(parents=True, exist_ok=True)
    data = TASK.prepare(config, TASK.read(config), folder)
    torch.manual_seed(config.seed)
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    assert isinstance(config.model, EncoderDecoderConfig)
    net = Translator(config.model, data.vocabulary.vocab_size, max(data.lengths))
    given, steps = config.optimizer, config.train.steps
    options = {"betas": (given.b1, given.b2), "eps": given.epsilon, "fused": True}
    optimizer = torch.optim.Adam(net.parameters(), lr=0.0, **options)
    rates, losses = make_schedule(given, steps=steps), {}
    for step, batch in zip(range(steps), data.batches(0, np.arange), strict=False):
        if time.monotonic() > end:
            raise Stopped(f"the time is up in {folder.name} at step {step:,}; it starts again with the same command")
        net.train()
        optimizer.param_groups[0]["lr"] = float(rates(step))
        total, count = cross_entropy(net, batch, smoothing=config.loss.label_smoothing)
        optimizer.zero_grad(set_to_none=True)
        (total / count).backward()
        optimizer.step()
        if (step + 1) % config.train.validate_every == 0 or step + 1 == steps:
            losses[str(step + 1)] = validation_loss(net, data)
            print(f"step {step + 1:,}/{steps:,}: validation loss {losses[str(step + 1)]:.3f}", flush=True)
    return losses, time.monotonic() - began


def cross_entropy(net: Translator, batch: Batch[np.ndarray], *, smoothing: float) -> tuple[torch.Tensor, int]:
    """Returns the sum of the loss over the real target tokens, and their number."""
    assert batch.source.valid is not None
    rows = batch.source.valid.any(1)  # a row without a sentence has no key to attend to
    arrays = batch.source.ids, batch.source.valid, batch.target.ids, batch.target.valid, batch.labels
    source, source_valid, target, real, labels = (torch.from_numpy(np.array(x)[rows]) for x in arrays)
    logits, labels = net(source, source_valid, target, real), labels.long()
    loss = nn.functional.cross_entropy(logits[real], labels[real], label_smoothing=smoothing, reduction="sum")
    return loss, int(real.sum())


@torch.no_grad()
def validation_loss(net: Translator, data: Any) -> float:
    """Returns the mean loss over the validation tokens, without dropout or smoothing."""
    net.eval()
    sums = [cross_entropy(net, batch, smoothing=0.0) for batch in data.validation_batches(np.arange)]
    return float(sum(total for total, _ in sums)) / sum(count for _, count in sums)
