"""Checks of dimensions, shared by settings and modules. Importing them imports no JAX."""

from __future__ import annotations


def resolve_head_dim(d_model: int, num_heads: int, num_kv_heads: int, head_dim: int | None = None) -> int:
    """Returns `head_dim`, by default ``d_model / num_heads``, after checking the numbers of heads.

    Raises:
      ValueError: `d_model` is not a multiple of `num_heads`, or `num_heads` not one of `num_kv_heads`.
    """
    if num_heads < 1 or (head_dim is None and d_model % num_heads):
        raise ValueError(f"d_model ({d_model}) must be divisible by num_heads ({num_heads})")
    if num_kv_heads < 1 or num_heads % num_kv_heads:
        raise ValueError(f"num_heads ({num_heads}) must be divisible by num_kv_heads ({num_kv_heads})")
    return d_model // num_heads if head_dim is None else head_dim
