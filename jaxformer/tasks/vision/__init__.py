"""Image classification: a vision Transformer, or a residual convolutional network with optional attention.

Importing this package imports only the settings; the task and the classifier are imported at first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jaxformer import lazy
from jaxformer.tasks.vision.config import DataConfig as DataConfig
from jaxformer.tasks.vision.config import VisionConfig as VisionConfig

if TYPE_CHECKING:
    from jaxformer.tasks.vision.predictor import ClassifiedImage as ClassifiedImage
    from jaxformer.tasks.vision.predictor import ImageClassifier as ImageClassifier
    from jaxformer.tasks.vision.task import TASK as TASK

__getattr__ = lazy.members(__name__, {"task": "TASK", "predictor": "ClassifiedImage ImageClassifier"})
