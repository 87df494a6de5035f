"""Image captioning, by a decoder that attends to the feature grid of a convolutional network.

Importing this package imports only the settings; the task and the captioner are imported at first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jaxformer import lazy
from jaxformer.tasks.captioning.config import CaptioningConfig as CaptioningConfig
from jaxformer.tasks.captioning.config import DataConfig as DataConfig
from jaxformer.tasks.captioning.config import DecodeConfig as DecodeConfig
from jaxformer.tasks.captioning.config import LossConfig as LossConfig
from jaxformer.tasks.config import Beam as Beam
from jaxformer.tasks.config import Greedy as Greedy
from jaxformer.tasks.config import MinimumRisk as MinimumRisk
from jaxformer.tasks.config import Sample as Sample

if TYPE_CHECKING:
    from jaxformer.tasks.captioning.predictor import ImageCaptioner as ImageCaptioner
    from jaxformer.tasks.captioning.task import TASK as TASK

__getattr__ = lazy.members(__name__, {"task": "TASK", "predictor": "ImageCaptioner"})
