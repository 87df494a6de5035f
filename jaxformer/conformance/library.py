"""The adapter of functions that take the masks and the dropout of this library, as `functional.attention` does."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax

from jaxformer import functional, masks
from jaxformer.conformance.adapter import Adapter, NotOfferedError, Request


@dataclasses.dataclass(frozen=True)
class LibraryAdapter(Adapter):
    """An attention that takes ``mask=`` as a `masks.Mask`, which a kernel reads tile by tile; see `modules`.

    >>> import numpy as np
    >>> request = Request(*[np.ones((1, 2, 1, 4))] * 3, causal=True)
    >>> LibraryAdapter(functional.attention).arguments(request)["mask"]
    Band(before=None, after=0)
    """

    bias: str | None = "bias"
    scale: str | None = "scale"

    def arguments(self, request: Request, seed: int = 0) -> dict[str, Any]:
        kinds = {
            "mask": lambda x: masks.dense(x[(None,) * (4 - x.ndim)]),
            "causal": lambda _: masks.causal(),
            "window": lambda x: masks.window(*x),
            "lengths": masks.lengths,
            "segments": lambda x: masks.segments(*x),
        }
        if request.bias is not None and self.bias is None:
            raise NotOfferedError("it takes no bias")
        parts = [kinds[name](getattr(request, name)) for name in request.parts()]
        given = {"bias": request.bias, "scale": request.scale}
        given["mask"] = functools.reduce(lambda a, b: a & b, parts) if parts else None
        given["dropout"] = functional.Dropout(request.rate, jax.random.key(seed)) if request.rate else None
        return dict(self.options) | {name: value for name, value in given.items() if value is not None}
