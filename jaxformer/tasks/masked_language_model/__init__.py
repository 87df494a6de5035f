"""Masked language modeling: from any text to an encoder that other tasks start from (BERT).

Importing this package imports only the settings; the task and the predictor are imported at first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jaxformer import lazy
from jaxformer.tasks.masked_language_model.config import DataConfig as DataConfig
from jaxformer.tasks.masked_language_model.config import MaskedLanguageModelingConfig as MaskedLanguageModelingConfig

if TYPE_CHECKING:
    from jaxformer.tasks.masked_language_model.task import TASK as TASK
    from jaxformer.tasks.masked_language_model.task import MaskedPredictor as MaskedPredictor

__getattr__ = lazy.members(__name__, {"task": "TASK MaskedPredictor"})
