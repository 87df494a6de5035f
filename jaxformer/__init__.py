"""Attention you can read and trust, and Transformers that train on a laptop, a GPU or a pod.

    from jaxformer import functional as F, masks, modules, models, decoding, training, pure

    import jaxformer
    config = jaxformer.configure("translation", data={"source": "my.en", "target": "my.fr"})
    jaxformer.train(config, "run")
    translator = jaxformer.load("run")

Submodules are imported when they are first used; `functional`, `masks`, `modules` and `models` need no extra.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jaxformer import (
        axes,
        config,
        conformance,
        data,
        decoding,
        demo,
        errors,
        evaluation,
        functional,
        inspection,
        interop,
        masks,
        models,
        modules,
        multihost,
        planning,
        sharding,
        tasks,
        tokenizers,
        training,
    )
    from jaxformer.modules.pure import pure
    from jaxformer.tasks.registry import configure
    from jaxformer.tasks.restore import average, load
    from jaxformer.tasks.runner import evaluate, train

__version__ = "0.1.0"

_MEMBERS = {
    "pure": "jaxformer.modules.pure",
    "configure": "jaxformer.tasks.registry",
    **dict.fromkeys(("load", "average"), "jaxformer.tasks.restore"),
    **dict.fromkeys(("train", "evaluate"), "jaxformer.tasks.runner"),
}

__all__ = [
    "average",
    "axes",
    "config",
    "configure",
    "conformance",
    "data",
    "decoding",
    "demo",
    "errors",
    "evaluate",
    "evaluation",
    "functional",
    "inspection",
    "interop",
    "load",
    "masks",
    "models",
    "modules",
    "multihost",
    "planning",
    "pure",
    "sharding",
    "tasks",
    "tokenizers",
    "train",
    "training",
]


def __getattr__(name: str) -> object:
    if name in _MEMBERS:
        return getattr(importlib.import_module(_MEMBERS[name]), name)
    if name in __all__:
        return importlib.import_module(f"jaxformer.{name}")
    raise AttributeError(f"module 'jaxformer' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
