"""Translation: from pairs of sentences to a translator, with the encoder-decoder of "Attention Is All You Need".

The settings are light; the task and the translator are imported when they are asked for.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from jaxformer.tasks.translation.config import DataConfig as DataConfig
from jaxformer.tasks.translation.config import DecodeConfig as DecodeConfig
from jaxformer.tasks.translation.config import LossConfig as LossConfig
from jaxformer.tasks.translation.config import TranslationConfig as TranslationConfig

if TYPE_CHECKING:
    from jaxformer.tasks.translation.task import TASK as TASK
    from jaxformer.tasks.translation.translator import Translator as Translator

_MEMBERS = {"TASK": "task", "Translator": "translator"}


def __getattr__(name: str) -> Any:
    if name in _MEMBERS:
        return getattr(importlib.import_module(f"{__name__}.{_MEMBERS[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
