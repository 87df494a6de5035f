"""Measures of a trained model: its answers, its loss, and the spread of its attention."""

from __future__ import annotations

import functools
from typing import Any

import jax
import numpy as np

from experiments.own_attention.training import LENGTH, Batch, Characters, loss
from jaxformer.inspection.attention_maps import AttentionWeights


def maps(net: Any, params: Any, tokens: np.ndarray) -> np.ndarray:
    """Returns the attention maps ``[L, B, maps, T, S]``; a pair of differential heads has one map."""
    captured = lambda params, tokens: net.bind(params).captured(tokens)["decoder.self"].weights()
    return np.asarray(jax.jit(captured)(params, tokens), np.float32)


def accuracy(net: Any, params: Any, batch: Batch) -> float:
    """Returns the share of questions that get the right answer, in percent."""
    tokens, labels, _ = batch
    logits = np.asarray(_apply(net, params, tokens))[:, LENGTH:]
    return 100 * float((logits.argmax(-1) == labels[:, LENGTH:]).mean())


@functools.partial(jax.jit, static_argnums=0)
def _apply(net: Any, params: Any, tokens: Any) -> jax.Array:
    return net.apply(params, tokens)


def retrieval(net: Any, params: Any, batch: Batch) -> dict[str, float]:
    """Returns the accuracy of the answers, and the share of the attention of a question on its answer, in percent.

    A share is that of the absolute weights of a row: differential attention has negative ones. The best map is the one
    with the largest share.
    """
    tokens, labels, _ = batch
    weights = np.abs(maps(net, params, tokens)[..., LENGTH:, :])
    answers = tokens[:, None] == labels[:, LENGTH:, None]  # [B, questions, S]
    assert (answers.sum(-1) == 1).all()
    shares = (weights * answers[None, :, None]).sum(-1) / np.maximum(weights.sum(-1), 1e-9)
    by_map = shares.mean((1, 3))
    share = {"best": 100 * float(by_map.max()), "mean": 100 * float(by_map.mean())}
    return {"accuracy": accuracy(net, params, batch), **share}


def language(net: Any, params: Any, batch: Batch) -> dict[str, float]:
    """Returns the loss of held-out characters, the keys that a map effectively attends to, and the share of zeros.

    The number of keys is exp(entropy) of the absolute weights of a row. Zeros are exact, among the keys that a
    character may see.
    """
    tokens = batch[0]
    value = jax.jit(functools.partial(loss, net))(params, batch)
    weights = np.abs(maps(net, params, tokens[:8]))
    seen = np.tri(tokens.shape[1], dtype=bool)
    shares = weights / np.maximum(weights.sum(-1, keepdims=True), 1e-9)
    entropy = -(shares * np.log(np.maximum(shares, 1e-30))).sum(-1)
    zeros = (weights[..., seen] == 0).mean()
    return {"loss": float(value), "keys": float(np.exp(entropy).mean()), "zeros": 100 * float(zeros)}


def picture(net: Any, params: Any, text: Characters, length: int = 24) -> AttentionWeights:
    """Returns the maps of the first held-out characters."""
    tokens = text.held_out(1)[0][:, :length]
    letters = tuple(text.alphabet[i].replace(" ", "_").replace("\n", "/") for i in tokens[0])
    return AttentionWeights(letters, letters, maps(net, params, tokens)[:, 0])
