"""Translation: from pairs of sentences to a translator, with the encoder-decoder of "Attention Is All You Need".

Importing this package imports only the settings; the task and the translator are imported at first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jaxformer import lazy
from jaxformer.tasks.config import Beam as Beam
from jaxformer.tasks.config import Greedy as Greedy
from jaxformer.tasks.config import MinimumRisk as MinimumRisk
from jaxformer.tasks.config import Sample as Sample
from jaxformer.tasks.translation.config import DataConfig as DataConfig
from jaxformer.tasks.translation.config import DecodeConfig as DecodeConfig
from jaxformer.tasks.translation.config import LossConfig as LossConfig
from jaxformer.tasks.translation.config import SimCutConfig as SimCutConfig
from jaxformer.tasks.translation.config import TranslationConfig as TranslationConfig

if TYPE_CHECKING:
    from jaxformer.tasks.translation.task import TASK as TASK
    from jaxformer.tasks.translation.translator import Translator as Translator

__getattr__ = lazy.members(__name__, {"task": "TASK", "translator": "Translator"})
