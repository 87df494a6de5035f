"""The data pipeline, from files to batches: sources of texts and images, batch plans, prefetching."""

from jaxformer import lazy

_MODULES = (
    "batch batch_plan captions distinct examples fetch idx image_batches images lines mixture packing pairs "
    "permutation pipeline reading sources text token_cache units weights windows"
)
__getattr__ = lazy.members(__name__, dict.fromkeys(_MODULES.split(), ""))
