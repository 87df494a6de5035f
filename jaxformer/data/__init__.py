"""The data pipeline, from files to batches: sources of texts and images, tokenizers, batch plans, prefetching."""

from jaxformer import lazy

_MODULES = (
    "batch batch_plan captions examples fetch idx image_batches images packing pipeline segmentation sources "
    "special_tokens text token_cache tokenizer windows"
)
__getattr__ = lazy.members(__name__, dict.fromkeys(_MODULES.split(), ""))
