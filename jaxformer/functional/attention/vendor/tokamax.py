"""tokamax, an optional dependency: one function that chooses among kernels for GPU and TPU (OpenXLA 2025)."""

from __future__ import annotations

import functools
import importlib
import importlib.util

from jaxtyping import Array, Float

from jaxformer import targets
from jaxformer.functional.attention.base import Request
from jaxformer.functional.attention.logits import SoftCap
from jaxformer.functional.attention.vendor import jax_nn


def refuse(request: Request) -> str | None:
    """Returns the reason why tokamax cannot compute a request on the target devices, or None if it can."""
    if importlib.util.find_spec("tokamax") is None:
        return "tokamax is not installed"
    device = targets.devices()[0]
    if device.platform == "cpu":
        return f"it needs a GPU or a TPU, got cpu ({device.device_kind})"
    return refuse_anywhere(request)


def refuse_anywhere(request: Request) -> str | None:
    """Returns the reason why tokamax cannot compute a request on any device, or None if it can."""
    if request.score is not None and not isinstance(request.score, SoftCap):
        return "its only function of the logits is soft_cap"
    if request.score is not None and request.bias is not None:
        return "it would cap the sum of logits and bias"
    return jax_nn.refuse_call(request)


def attention(request: Request) -> Float[Array, "B T N J"]:
    """Computes the result of `reference.attention` with a kernel that tokamax chooses."""
    call = importlib.import_module("tokamax").dot_product_attention
    if isinstance(request.score, SoftCap):
        call = functools.partial(call, logits_soft_cap=request.score.cap)
    return jax_nn.attention_by(call, request)
