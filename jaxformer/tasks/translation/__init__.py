"""Translation: from pairs of sentences to a translator, with the encoder-decoder of "Attention Is All You Need"."""

from jaxformer.tasks.translation.config import DataConfig as DataConfig
from jaxformer.tasks.translation.config import DecodeConfig as DecodeConfig
from jaxformer.tasks.translation.config import LossConfig as LossConfig
from jaxformer.tasks.translation.config import TranslationConfig as TranslationConfig
from jaxformer.tasks.translation.task import TASK as TASK
from jaxformer.tasks.translation.translator import Translator as Translator
