"""Attention with any similarity of query and key: additive (Bahdanau), multiplicative (Luong), or custom."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from jaxformer.functional.attention.base import masked_softmax
from jaxformer.masks import Mask, as_mask

Similarity = Callable[[jax.Array, jax.Array], jax.Array]
"""A function of the queries ``[T, D]`` and keys ``[S, E]`` of one example that returns logits ``[T, S]``.

Zeros take the place of queries and keys that are masked everywhere, so its slope should be finite there: that of a
distance is not, without a small number under the root."""


def general_attention(
    query: Float[Array, "B T D"],
    key: Float[Array, "B S E"],
    value: Float[Array, "B S J"],
    similarity: Similarity,
    *,
    mask: Mask | Bool[Array, ...] | None = None,
) -> tuple[Float[Array, "B T J"], Float[Array, "B T S"]]:
    r"""Computes attention with any similarity function; returns the output and the weights.

    .. math:: e_{ts} = sim(q_t, k_s), \quad a_t = \mathrm{softmax}(e_t), \quad y_t = \sum_s a_{ts} v_s

    `mask` must be the same for all heads. Masked keys and empty rows follow the contract of `jaxformer.masks`.

    Raises:
      ValueError: batch sizes, lengths or the mask do not match; the message has the shapes.

    >>> import jax.numpy as jnp
    >>> x = jnp.eye(2)[None]
    >>> output, weights = general_attention(x, x, x, lambda q, k: -10 * jnp.abs(q[:, None] - k[None]).sum(-1))
    >>> weights[0].round(2).tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """
    (batch, num_queries, _), num_keys = query.shape, key.shape[1]
    if key.shape[0] != batch or value.shape[:2] != key.shape[:2]:
        raise ValueError(
            f"query, key and value must agree in batch, key and value in length; got {list(query.shape)}, "
            f"{list(key.shape)}, {list(value.shape)}"
        )
    allowed = None
    if mask is not None:
        allowed = as_mask(mask).dense(num_queries, num_keys)
        if allowed.shape[0] not in (1, batch) or allowed.shape[1] != 1:
            raise ValueError(f"mask must broadcast to [{batch}, 1, T, S], got shape {list(allowed.shape)}")
        allowed = jnp.broadcast_to(allowed[:, 0], (batch, num_queries, num_keys))
        # As in `attention_head`, because a weight of 0 times NaN is NaN.
        query = jnp.where(allowed.any(2)[..., None], query, 0)
        key, value = (jnp.where(allowed.any(1)[..., None], x, 0) for x in (key, value))
    logits = jax.vmap(similarity)(query, key).astype(jnp.float32)
    weights = masked_softmax(logits, allowed)
    output = jnp.einsum("bts,bsj->btj", weights.astype(value.dtype), value, preferred_element_type=jnp.float32)
    if allowed is not None:
        output = jnp.where(allowed.any(2)[..., None], output, 0.0)
    return output.astype(value.dtype), weights


def additive_similarity(
    query: Float[Array, "T A"], key: Float[Array, "S A"], v: Float[Array, " A"]
) -> Float[Array, "T S"]:
    r"""Returns :math:`v^\top \tanh(q_t + k_s)` of projected queries and keys (Bahdanau et al. 2015, A.1.2).

    >>> print(additive_similarity(jnp.array([[0.0], [9.0]]), jnp.array([[0.0]]), jnp.array([3.0])).round(2))
    [[0.]
     [3.]]
    """
    wide = np.promote_types(query.dtype, np.float32)  # the dtype in which the gradients of queries and keys are summed
    added = query.astype(wide)[:, None] + key.astype(wide)[None]
    hidden = jnp.tanh(added.astype(np.promote_types(query.dtype, key.dtype)))
    return jnp.einsum("tsa,a->ts", hidden, v.astype(hidden.dtype), preferred_element_type=jnp.float32)


def dot_similarity(query: Float[Array, "T A"], key: Float[Array, "S A"]) -> Float[Array, "T S"]:
    r"""Returns the products :math:`q_t^\top k_s`, unscaled, in float32 (Luong et al. 2015, 3.1).

    >>> dot_similarity(jnp.array([[1.0, 2.0]]), jnp.array([[3.0, 4.0], [0.0, 1.0]])).tolist()
    [[11.0, 2.0]]
    """
    return jnp.einsum("ta,sa->ts", query, key, preferred_element_type=jnp.float32)


def additive_attention(
    query: Float[Array, "B T D"],
    key: Float[Array, "B S E"],
    value: Float[Array, "B S J"],
    *,
    w_query: Float[Array, "D A"],
    w_key: Float[Array, "E A"],
    v: Float[Array, " A"],
    mask: Mask | Bool[Array, ...] | None = None,
) -> tuple[Float[Array, "B T J"], Float[Array, "B T S"]]:
    r"""Computes Bahdanau attention: :math:`e_{ts} = v^\top \tanh(W q_t + U k_s)` (Bahdanau et al. 2015, A.1.2).

    In an encoder-decoder, q is a decoder state and k an encoder state, which is also the value. Each key is projected
    once, not once for each query; the argument of tanh is ``[T, S, A]``.

    >>> import jax.numpy as jnp, numpy as np
    >>> query, key, one = jnp.zeros((1, 1, 1)), jnp.array([[[0.], [9.]]]), jnp.ones((1, 1))
    >>> _, weights = additive_attention(query, key, key, w_query=one, w_key=one, v=jnp.log(jnp.array([3.])))
    >>> print(np.asarray(weights[0]).round(2))        # tanh 9 is 1: the weights are 1/4 and 3/4
    [[0.25 0.75]]
    """

    similarity = lambda query, key: additive_similarity(query @ w_query, key @ w_key, v)
    return general_attention(query, key, value, similarity, mask=mask)


def multiplicative_attention(
    query: Float[Array, "B T D"],
    key: Float[Array, "B S E"],
    value: Float[Array, "B S J"],
    *,
    w: Float[Array, "D E"],
    mask: Mask | Bool[Array, ...] | None = None,
) -> tuple[Float[Array, "B T J"], Float[Array, "B T S"]]:
    r"""Computes Luong's "general" attention: :math:`e_{ts} = q_t^\top W k_s` (Luong et al. 2015, 3.1).

    >>> import jax.numpy as jnp, numpy as np
    >>> query, key = jnp.array([[[1., 5.]]]), jnp.log(jnp.array([[[1.], [3.]]]))
    >>> _, weights = multiplicative_attention(query, key, key, w=jnp.array([[1.], [0.]]))
    >>> print(np.asarray(weights[0]).round(2))
    [[0.25 0.75]]
    """

    return general_attention(query, key, value, lambda query, key: dot_similarity(query @ w, key), mask=mask)
