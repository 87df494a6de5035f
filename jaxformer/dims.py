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


def check_rank(name: str, x: object, dims: str) -> None:
    """Checks that `x` is an array with as many dimensions as `dims` names, such as "B T".

    Raises:
      ValueError: it has another number of dimensions; the message has its shape.
      TypeError: it is not an array.
    """
    expected = f"[{', '.join(dims.split())}]"
    shape = getattr(x, "shape", None)
    if shape is None:
        raise TypeError(f"{name} must be an array {expected}, got a {type(x).__name__}; jnp.asarray makes an array")
    if len(shape) != len(dims.split()):
        raise ValueError(f"{name} must be {expected}, got shape {list(shape)}")
