"""Token tagging: a label for each word, such as parts of speech and names, from an encoder that may be pre-trained.

Importing this package imports only the settings; the task and the tagger are imported at first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jaxformer import lazy
from jaxformer.tasks.tagging.config import DataConfig as DataConfig
from jaxformer.tasks.tagging.config import TaggingConfig as TaggingConfig

if TYPE_CHECKING:
    from jaxformer.tasks.tagging.task import TASK as TASK
    from jaxformer.tasks.tagging.task import Tagged as Tagged
    from jaxformer.tasks.tagging.task import Tagger as Tagger

__getattr__ = lazy.members(__name__, {"task": "TASK Tagged Tagger"})
