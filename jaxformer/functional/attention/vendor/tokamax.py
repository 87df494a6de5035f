"""tokamax, where it is installed: kernels for GPU and TPU behind one call, of which it chooses (OpenXLA 2025)."""

from __future__ import annotations

import functools
import importlib.util

from jaxtyping import Array, Float

from jaxformer import targets
from jaxformer.functional.attention.base import Request
from jaxformer.functional.attention.compose import SoftCap
from jaxformer.functional.attention.vendor import jax_nn


def refuse(request: Request) -> str | None:
    """Why tokamax cannot do this here; None where it can."""
    if importlib.util.find_spec("tokamax") is None:
        return "tokamax is not installed"
    device = targets.devices()[0]
    if device.platform == "cpu":
        return f"it needs a GPU or a TPU, and this is cpu ({device.device_kind})"
    return refuse_anywhere(request)


def refuse_anywhere(request: Request) -> str | None:
    """Why it cannot do this on any device."""
    if request.score is not None and not isinstance(request.score, SoftCap):
        return "of the functions of the logits it takes soft_cap only"
    if request.score is not None and request.bias is not None:
        return "it would cap the logits with the bias in them"
    return jax_nn.refuse_call(request)


def attention(request: Request) -> Float[Array, "B T N J"]:
    """The same result as `reference.attention`, by a kernel of tokamax's choice."""
    import tokamax

    call = tokamax.dot_product_attention
    if isinstance(request.score, SoftCap):
        call = functools.partial(call, logits_soft_cap=request.score.cap)
    return jax_nn.attention_by(call, request)
