"""The weights and predictions of one forward pass, for the `inspection.pages.View` of a predictor."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxformer.functional.tokens import Tokens
from jaxformer.inspection.attention_maps import AttentionWeights, Patches, Predictions
from jaxformer.modules.pure import Params, Pure
from jaxformer.tokenizers.base import Tokenizer

BEST = 5
"""The number of pieces that are shown of each position."""


def all_weights(net: Pure[Any, Any], params: Params, *inputs: Any) -> dict[str, np.ndarray]:
    """Returns the weights ``[L, N, T, S]`` of every attention of the first row, by name; none without attention."""
    return {name: np.asarray(x, np.float32) for name, x in jax.device_get(_weights(net, params, *inputs)).items()}


@functools.partial(jax.jit, static_argnums=0)
def _weights(net: Pure[Any, Any], params: Params, *inputs: Any) -> dict[str, jax.Array]:
    captured = {name: x.weights() for name, x in net.bind(params).captured(*inputs).items()}
    return {name: x[:, 0] if x.ndim == 5 else x[:1] for name, x in captured.items()}


def cropped(
    weights: np.ndarray,
    target: Sequence[str],
    source: Sequence[str],
    guesses: Predictions = (),
    patches: Patches | None = None,
) -> AttentionWeights:
    """Returns weights ``[L, N, T, S]`` between these pieces, without the padding after them."""
    own = weights[:, :, : len(target), : len(source)]
    return AttentionWeights(tuple(source), tuple(target), own, patches, guesses)


def self_attention(
    net: Pure[Any, Any], params: Params, tokens: Tokens[np.ndarray], *, pieces: Sequence[str], guesses: Predictions = ()
) -> dict[str, AttentionWeights]:
    """Returns the attentions of a network that reads one sequence, a row of tokens that begins with these pieces."""
    found = all_weights(net, params, tokens)
    return {name: cropped(x, pieces, pieces, guesses) for name, x in found.items()}


def predictions(
    net: Pure[Any, Any], params: Params, *inputs: Any, tokenizer: Tokenizer, number: int, renormalize: bool = False
) -> Predictions:
    """Returns the most probable pieces of the first `number` positions of the first row.

    Args:
      renormalize: True if the rows that pad the table of tokens have no share of the probability.
    """
    best = _best(net, tokenizer.vocab_size, renormalize, params, *inputs)
    shares, ids = (np.asarray(x)[:number].tolist() for x in best)
    return tuple(tuple(zip(tokenizer.pieces(row), share, strict=True)) for row, share in zip(ids, shares, strict=True))


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _best(
    net: Pure[Any, Any], vocab_size: int, renormalize: bool, params: Params, *inputs: Any
) -> tuple[jax.Array, jax.Array]:
    """Returns the probabilities and ids ``[T, 5]`` of the best tokens of the vocabulary."""
    logits = net.apply(params, *inputs)[0].astype(jnp.float32)
    probabilities = jax.nn.softmax(logits[:, :vocab_size] if renormalize else logits)[:, :vocab_size]
    shares, ids = jax.lax.top_k(jnp.nan_to_num(probabilities), min(BEST, vocab_size))
    return shares, ids


def by_probability(classes: Mapping[str, float]) -> dict[str, str]:
    """Returns the most probable classes with their probabilities, as a result that a view shows."""
    best = sorted(classes.items(), key=lambda pair: -pair[1])[:BEST]
    return {"class": ", ".join(f"{name} {share:.1%}" for name, share in best)}
