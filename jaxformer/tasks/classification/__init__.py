"""Text classification: an encoder, possibly pre-trained, with a linear layer on one vector of the text.

Importing this package imports only the settings; the task and the classifier are imported at first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jaxformer import lazy
from jaxformer.tasks.classification.config import ClassificationConfig as ClassificationConfig
from jaxformer.tasks.classification.config import DataConfig as DataConfig

if TYPE_CHECKING:
    from jaxformer.tasks.classification.predictor import Classified as Classified
    from jaxformer.tasks.classification.predictor import TextClassifier as TextClassifier
    from jaxformer.tasks.classification.task import TASK as TASK

__getattr__ = lazy.members(__name__, {"task": "TASK", "predictor": "Classified TextClassifier"})
