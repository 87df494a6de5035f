"""The data pipeline, from files to batches: sources of texts and images, tokenizers, batch plans, prefetching."""

from jaxformer import lazy

_MODULES = (
    "batch batch_plan captions character_tokenizer examples fetch idx image_batches images languages marian_tokenizer "
    "packing pipeline pretrained_tokenizer segmentation sources special_tokens subword_tokenizer text token_cache "
    "tokenizer tokenizer_json windows"
)
__getattr__ = lazy.members(__name__, dict.fromkeys(_MODULES.split(), ""))
