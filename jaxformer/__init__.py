"""Attention you can read and trust, and a translation Transformer that trains on a laptop, a GPU or a pod.

    from jaxformer import functional as F, masks, modules, models, decoding, training, pure

Nothing is imported before it is asked for; `functional`, `masks`, `modules` and `models` need jax and flax only.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jaxformer import (
        axes,
        config,
        data,
        decoding,
        demo,
        evaluation,
        functional,
        inspection,
        masks,
        models,
        modules,
        multihost,
        planning,
        sharding,
        tasks,
        training,
    )
    from jaxformer.modules.pure import pure

__version__ = "0.1.0"
__all__ = [
    "axes",
    "config",
    "data",
    "decoding",
    "demo",
    "evaluation",
    "functional",
    "inspection",
    "masks",
    "models",
    "modules",
    "multihost",
    "planning",
    "pure",
    "sharding",
    "tasks",
    "training",
]


def __getattr__(name: str) -> Any:
    if name == "pure":
        return importlib.import_module("jaxformer.modules.pure").pure
    if name in __all__:
        return importlib.import_module(f"jaxformer.{name}")
    raise AttributeError(f"module 'jaxformer' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
