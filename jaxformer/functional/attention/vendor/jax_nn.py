"""The kernels behind ``jax.nn.dot_product_attention``, including cuDNN's, and tokamax's function with that signature.

tokamax, an optional dependency, chooses among kernels for GPU and TPU (OpenXLA 2025).

In bfloat16 these kernels mix dtypes internally, so they fail under ``jax_numpy_dtype_promotion="strict"``.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import os
import re
from collections.abc import Callable
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxformer import targets
from jaxformer.functional.attention.base import Request, SoftCap
from jaxformer.functional.attention.vendor.folding import foldable
from jaxformer.functional.bias import Bias, dense_bias
from jaxformer.masks import Band

FEWEST_QUERIES = 64
"""The smallest number of queries for which cuDNN is a good default.

A cached step has one query for each hypothesis of a beam. The kernel would copy the whole cache to its own layout for
little work. Measured on an H200 in bfloat16 at 256 x 64 positions with 16 heads of 64, milliseconds forward and with
the gradient: 0.10 and 0.41 causal, 0.20 and 0.54 padded, against 0.24 and 0.50, 0.19 and 0.48 of "reference".
"""
DETERMINISTIC = "xla_gpu_deterministic_ops", "xla_gpu_exclude_nondeterministic_ops"
"""The flags under which a training step with this kernel ended on an H200 with jaxlib 0.11.2.

XLA's error is ``IndexError: absl::container_internal::raw_hash_map<>::at``: it looks for a compiled graph of cuDNN that
it does not have.
"""
FLASH = 8
"""The lowest compute capability (major number) with flash attention: Ampere's."""


def refuse_xla(request: Request) -> str | None:
    """Returns the reason why `jax.nn` cannot compute a request on the target devices, or None if it can."""
    if request.score is not None:
        return "it has no function of the logits"
    if request.query.dtype == jnp.float16 and targets.devices()[0].platform == "cpu":
        return "XLA has no products of float16 with sums in float32 on a CPU; use float32 or bfloat16"
    return refuse_call(request)


def refuse_call(request: Request) -> str | None:
    """Returns the reason why no function with the signature of `jax.nn` can compute a request, or None."""
    if request.sinks is not None:
        return "it has no attention sinks"
    if request.dropout is not None:
        return "it cannot drop weights by the hash of this library"
    if request.query.shape[1] == 0 or request.key.shape[1] == 0:
        return "it needs at least one query and one key"
    if request.key.dtype != request.query.dtype or request.value.dtype != request.query.dtype:
        return f"it needs one dtype, got {request.query.dtype}, {request.key.dtype} and {request.value.dtype}"
    return None


def refuse_cudnn(request: Request) -> str | None:
    """Returns the reason why cuDNN cannot compute a request on the target devices, or None if it can."""
    device = targets.devices()[0]
    if device.platform != "gpu" or "NVIDIA" not in device.device_kind:
        return f"it needs an NVIDIA GPU, got {device.platform} ({device.device_kind})"
    if reason := _refuse_device(device):
        return reason
    if request.query.dtype not in (jnp.bfloat16, jnp.float16):
        return f"it needs bfloat16 or float16, got {request.query.dtype}"
    if _dim(request) % 8 or _dim(request) > 128:
        return f"it needs a head dim that is a multiple of 8 and at most 128, got {_dim(request)}"
    if isinstance(request.bias, Bias):
        return "it would need the bias as a T x S array"
    if request.bias is not None and request.bias.dtype != request.query.dtype:
        return f"it would round the bias from {request.bias.dtype} to {request.query.dtype}, the dtype of the query"
    lengths = request.query.shape[1], request.key.shape[1]
    if any(length % 2 for length in lengths):  # JAX rejects them only in the gradient, too late to choose another
        return f"its gradient needs even lengths, got T = {lengths[0]} and S = {lengths[1]}"
    return refuse_xla(request)


def _refuse_device(device: object) -> str | None:
    """Returns the reason why flash attention cannot run on an NVIDIA GPU, judging by the device, or None."""
    capability = getattr(device, "compute_capability", None)
    major = capability.partition(".")[0] if isinstance(capability, str) else ""
    if major.isdecimal() and int(major) < FLASH:
        return f"it needs compute capability {FLASH}.0 or later, got {capability}"
    is_here = isinstance(device, jax.Device) and device in jax.devices()  # not just the description of a target
    if is_here and _lacks_cudnn():
        return "it needs cuDNN, which is not installed"
    return None


def _lacks_cudnn() -> bool:
    """Returns True if JAX found no cuDNN; False if that is unknown, because JAX has no public way to ask."""
    try:
        library = importlib.import_module("jax._src.lib")
    except ImportError:
        return False
    return getattr(library, "cuda_versions", True) is None


def decline_cudnn(request: Request) -> str | None:
    """Returns the reason why cuDNN is a bad default for a request that it accepts, or None if it is a good one."""
    if any(re.search(rf"--{flag}(=true|=1|\s|$)", os.environ.get("XLA_FLAGS", "")) for flag in DETERMINISTIC):
        return "XLA fails to run it under the flags for deterministic operations"
    if request.query.shape[1] < FEWEST_QUERIES:
        return f"it is slow for fewer than {FEWEST_QUERIES} queries, got {request.query.shape[1]}"
    return None


def attention(request: Request, *, implementation: Literal["xla", "cudnn"]) -> Float[Array, "B T N J"]:
    """Computes the result of `reference.attention` with a kernel of `jax.nn`."""
    call = functools.partial(jax.nn.dot_product_attention, implementation=implementation)
    return attention_by(_with_rows(call) if implementation == "cudnn" else call, request)


def _with_rows(call: Callable[..., Array]) -> Callable[..., Array]:
    """Returns cuDNN with a rule for ``jax.vmap``; JAX's own rule accepts only biases and masks of all rows and heads.

    A copy of the mask for each head would work with JAX's rule, at N times the memory, even without ``jax.vmap``.
    """

    def attend(
        query: Array, key: Array, value: Array, bias: Array | None, mask: Array | None, **settings: object
    ) -> Array:
        kernel = functools.partial(call, **settings)
        if all(x is None or x.shape[:2] == (query.shape[0], query.shape[2]) for x in (bias, mask)):
            return kernel(query, key, value, bias, mask)
        return foldable(kernel)(query, key, value, bias, mask)

    return attend


def attention_by(call: Callable[..., Array], request: Request) -> Float[Array, "B T N J"]:
    """Computes the result of `reference.attention` with a `call` like ``jax.nn.dot_product_attention``."""
    query, key, value, mask = request.query, request.key, request.value, request.mask
    batch, num_queries, num_keys = *query.shape[:2], key.shape[1]
    causal = isinstance(mask, Band) and mask.after == 0 and num_queries == num_keys
    finite = causal or (mask is not None and mask.finite)  # if causal, each query sees itself and each key is seen
    allowed = None if mask is None or (causal and request.bias is None) else mask.dense(num_queries, num_keys)
    bias, nonempty = None, jnp.ones((1, 1, num_queries, 1), bool)
    if request.bias is not None:
        bias = dense_bias(request.bias, query, num_keys, request.scale, allowed=allowed)
        # The logits are float32, while bfloat16 has steps of 2 near 500. A bias may be an additive mask; a row of minus
        # infinity, also after a cast, is NaN.
        dtype = bias.dtype if bias.dtype == query.dtype else np.promote_types(query.dtype, np.float32)
        nonempty = bias > -jnp.inf
        bias = jnp.maximum(bias.astype(dtype), 0.5 * float(jnp.finfo(dtype).min))
        bias = jnp.broadcast_to(bias, (*bias.shape[:2], num_queries, num_keys))
    if allowed is not None:
        nonempty = nonempty & allowed  # elementwise: mask and bias together may leave a row without keys
    if allowed is not None and not finite:
        seen = _per_key_head(allowed.any(2), request.group)
        key, value = (jnp.where(seen, x, 0) for x in (key, value))
        query = jnp.where(_rows(allowed.any(3)), query, 0)
    # These kernels have a single head dim; padding with zeros changes no product.
    dim = _dim(request)
    query, key, value = (jnp.pad(x, ((0, 0), (0, 0), (0, 0), (0, dim - x.shape[3]))) for x in (query, key, value))
    # A kernel skips causal and windowed blocks only if its own arguments request it.
    call, array = functools.partial(call, scale=request.scale), None
    if causal:
        assert isinstance(mask, Band)
        call = functools.partial(call, is_causal=True)
        if mask.before is not None:
            call = functools.partial(call, local_window_size=(mask.before, 0))
    elif allowed is not None:
        array = jnp.broadcast_to(allowed, (batch, allowed.shape[1], num_queries, num_keys))
    output = call(query, key, value, bias, array)
    output = jnp.where(_rows(nonempty.any(3)), output, 0)
    return output[..., : request.value.shape[3]].astype(request.query.dtype)


def _dim(request: Request) -> int:
    return max(request.query.shape[3], request.value.shape[3])


def _rows(x: Array) -> Array:
    """Reshapes ``[b, n, T]`` to ``[b, T, n, 1]``."""
    return x.swapaxes(1, 2)[..., None]


def _per_key_head(seen: Array, group: int) -> Array:
    """Reduces ``[b, n, S]`` to ``[b, S, k, 1]``: True if any of the heads that share a key head sees the key."""
    if seen.shape[1] > 1:
        seen = seen.reshape(seen.shape[0], seen.shape[1] // group, group, seen.shape[2]).any(2)
    return _rows(seen)


def refuse_tokamax(request: Request) -> str | None:
    """Returns the reason why tokamax cannot compute a request on the target devices, or None if it can."""
    if importlib.util.find_spec("tokamax") is None:
        return "tokamax is not installed"
    device = targets.devices()[0]
    if device.platform == "cpu":
        return f"it needs a GPU or a TPU, got cpu ({device.device_kind})"
    return refuse_tokamax_anywhere(request)


def refuse_tokamax_anywhere(request: Request) -> str | None:
    """Returns the reason why tokamax cannot compute a request on any device, or None if it can."""
    if request.score is not None and not isinstance(request.score, SoftCap):
        return "its only function of the logits is soft_cap"
    if request.score is not None and request.bias is not None:
        return "it would cap the sum of logits and bias"
    return refuse_call(request)


def tokamax_attention(request: Request) -> Float[Array, "B T N J"]:
    """Computes the result of `reference.attention` with a kernel that tokamax chooses."""
    call = importlib.import_module("tokamax").dot_product_attention
    if isinstance(request.score, SoftCap):
        call = functools.partial(call, logits_soft_cap=request.score.cap)
    return attention_by(call, request)
