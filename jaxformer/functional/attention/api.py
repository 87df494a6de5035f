"""The attention call: checks the request, then chooses who computes it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

from jaxtyping import Array, Bool, Float

from jaxformer import targets
from jaxformer.functional.attention import blockwise, reference
from jaxformer.functional.attention.base import Request, Score, make_request
from jaxformer.functional.attention.vendor import jax_nn, splash, tokamax
from jaxformer.functional.bias import Bias
from jaxformer.functional.dropout import Dropout
from jaxformer.masks import Mask


class Implementation(NamedTuple):
    """One way to compute attention."""

    run: Callable[[Request], Array]
    refuse: Callable[[Request], str | None]
    """Why it cannot do this here, or None where it can."""


implementations: dict[str, Implementation] = {
    "reference": Implementation(lambda request: reference.attention(request)[0], lambda request: None),
    "blockwise": Implementation(blockwise.attention, lambda request: None),
    "xla": Implementation(functools.partial(jax_nn.attention, implementation="xla"), jax_nn.refuse_xla),
    "cudnn": Implementation(functools.partial(jax_nn.attention, implementation="cudnn"), jax_nn.refuse_cudnn),
    "splash": Implementation(splash.attention, splash.refuse),
    "tokamax": Implementation(tokamax.attention, tokamax.refuse),
}


def attention(
    query: Float[Array, "B T N H"],
    key: Float[Array, "B S K H"],
    value: Float[Array, "B S K J"],
    *,
    mask: Mask | Bool[Array, ...] | None = None,
    bias: Float[Array, "b n t s"] | Bias | None = None,
    scale: float | Float[Array, ""] | None = None,
    score: Score | None = None,
    dropout: Dropout | None = None,
    implementation: str | None = None,
) -> Float[Array, "B T N J"]:
    r"""Multi-head scaled dot-product attention, :math:`\mathrm{softmax}(QK^\top/\sqrt H + \mathrm{bias})V` per head.

    `attention_head` is the definition; this call lifts it over heads and batch.  With fewer key heads than query
    heads (N a multiple of K), consecutive query heads share one: grouped-query attention (Ainslie et al. 2023),
    multi-query at K = 1 (Shazeer 2019).

    Args:
      mask: who may attend to whom, True = attend: a `Mask`, or a Boolean array for `masks.dense`.
      bias: added to the scaled logits: an array, each dimension 1 or that of [B, N, T, S], or a `Bias` such as
        `alibi`, `t5_bias` or `relative_keys`, which needs no such array.
      scale: factor of the logits, ``H ** -0.5`` by default; one that is learned, or traced, multiplies the queries.
      score: an elementwise function of the scaled logits, before bias and mask, such as `soft_cap`; hashable.
      dropout: rate and key for dropping attention weights.
      implementation: "reference", "blockwise", "xla" (that of `jax.nn`), "cudnn", "splash" (on TPU), "tokamax" (where
        it is installed), or None to choose; see `explain_attention`.

    Raises:
      ValueError: shapes that do not fit, with the got and the expected value; an unknown implementation, or one that
        cannot do this, with the reason.

    >>> import jax.numpy as jnp
    >>> from jaxformer import masks
    >>> query, key = jnp.zeros((1, 2, 4, 8)), jnp.zeros((1, 2, 1, 8))  # four heads share a key
    >>> value = jnp.array([1.0, 3.0]).reshape(1, 2, 1, 1)
    >>> attention(query, key, value, mask=masks.causal())[0, :, 0].tolist()  # keys all alike: the mean so far
    [[1.0], [2.0]]
    """
    request = make_request(query, key, value, mask=mask, bias=bias, scale=scale, score=score, dropout=dropout)
    name = choose(request) if implementation is None else implementation
    if name not in implementations:
        raise ValueError(f"unknown attention implementation {name!r}; there are {sorted(implementations)}")
    if reason := implementations[name].refuse(request):
        raise ValueError(f"attention implementation {name!r} cannot do this: {reason}")
    return implementations[name].run(request)


LONG = 1 << 21
"""Pairs of positions (T S) from which attention goes block by block on an accelerator, when nobody chooses."""

LONG_ON_CPU = 1 << 16
"""The same on a CPU, where blocks that stay in a cache win from about 256 by 256 positions on.

On two cores, 8 x 8, 32 x 4 and 64 x 8 sequences x heads of 64, without a mask, causal, padded, and a quarter as many
queries as keys, they take of the time of "reference", forward and with the gradient: 0.3 to 1.4 and 0.7 to 1.3 at 128
by 128, 0.4 to 0.6 and 0.4 to 1.0 at 256, 0.2 to 0.7 and 0.3 to 0.8 at 384, 0.3 to 0.6 and 0.3 to 1.1 from 512 to 1,024.
"""


def choose(request: Request) -> str:
    """Who computes it when nobody says: cuDNN or splash attention where they can, else by length."""
    if implementations["cudnn"].refuse(request) is None:
        return "cudnn"
    if implementations["splash"].refuse(request) is None and splash.worthwhile(request):
        return "splash"
    long = LONG_ON_CPU if targets.devices()[0].platform == "cpu" else LONG
    return "blockwise" if request.query.shape[1] * request.key.shape[1] >= long else "reference"
