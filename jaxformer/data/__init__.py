"""The data pipeline, from files to batches: sources of texts and images, batch plans, prefetching."""

from jaxformer import lazy

_MODULES = (
    "batch batch_plan captions examples fetch idx image_batches images packing pipeline sources text token_cache "
    "windows"
)
_MOVED = {
    "character_tokenizer": "characters",
    "marian_tokenizer": "marian",
    "pretrained_tokenizer": "pretrained",
    "special_tokens": "special_tokens",
    "subword_tokenizer": "subwords",
    "tokenizer_json": "tokenizer_json",
}
"""The modules that earlier pages of documentation import from here, and where they are in `jaxformer.tokenizers`."""

for _old, _new in _MOVED.items():
    lazy.alias(f"{__name__}.{_old}", f"jaxformer.tokenizers.{_new}")
__getattr__ = lazy.members(__name__, dict.fromkeys(_MODULES.split(), ""))
