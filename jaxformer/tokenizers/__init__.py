"""Text as token ids: vocabularies of characters, of subwords and of pretrained models, and the form of their text."""

from jaxformer import lazy

_MODULES = (
    "base characters folders languages loading moses normalization pretrained segmentation special_tokens subwords "
    "tokenizer_json trimming"
)
__getattr__ = lazy.members(__name__, dict.fromkeys(_MODULES.split(), ""))
