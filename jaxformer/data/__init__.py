"""Everything between text files and batches: sources, tokenizers, plans of batches and windows, pipeline."""

from jaxformer import lazy

_MODULES = (
    "batch batch_plan examples fetch packing pipeline segmentation sources special_tokens text token_cache tokenizer "
    "windows"
)
__getattr__ = lazy.members(__name__, dict.fromkeys(_MODULES.split(), ""))
