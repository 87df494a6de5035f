"""Language modeling: from any text to a model that continues texts, with the decoder-only Transformer.

Importing this package imports only the settings; the task and the generator are imported at first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jaxformer import lazy
from jaxformer.tasks.config import Beam as Beam
from jaxformer.tasks.config import Greedy as Greedy
from jaxformer.tasks.config import MinimumRisk as MinimumRisk
from jaxformer.tasks.config import Sample as Sample
from jaxformer.tasks.language_model.config import DataConfig as DataConfig
from jaxformer.tasks.language_model.config import DecodeConfig as DecodeConfig
from jaxformer.tasks.language_model.config import LanguageModelingConfig as LanguageModelingConfig

if TYPE_CHECKING:
    from jaxformer.tasks.language_model.generator import TextGenerator as TextGenerator
    from jaxformer.tasks.language_model.task import TASK as TASK

__getattr__ = lazy.members(__name__, {"task": "TASK", "generator": "TextGenerator"})
