"""The languages of a run that came from an M2M100, NLLB or mBART-50."""

from __future__ import annotations

from jaxformer.files import JsonObject
from jaxformer.interop.tensors import Settings
from jaxformer.tasks.config import TaskConfig
from jaxformer.tasks.translation.config import TranslationConfig
from jaxformer.tokenizers.base import Tokenizer
from jaxformer.tokenizers.languages import default_source
from jaxformer.tokenizers.pretrained import PublishedTokenizer


def with_languages(tokenizer: PublishedTokenizer, settings: Settings) -> tuple[JsonObject, JsonObject]:
    """Returns the languages of a folder as settings of the data, and the search without the one that it forces."""
    first = settings.get("forced_bos_token_id")
    forced = next((code for code, token in tokenizer.tags.items() if token == first), None)
    found = {"source_language": default_source(str(tokenizer.settings["tokenizer_class"]))}
    for side, name in (("source_language", "src_lang"), ("target_language", "tgt_lang")):
        if isinstance(code := tokenizer.settings.get(name), str):
            found[side] = code
    languages = {side: code for side, code in found.items() if code in tokenizer.tags}
    if forced is None:
        return {"tags": "both", **languages}, dict(settings)
    rest = {name: value for name, value in settings.items() if name != "forced_bos_token_id"}
    return {"tags": "both", **languages, "target_language": forced}, rest


def languages_of(config: TaskConfig, tokenizer: Tokenizer) -> tuple[str, str]:
    """Returns the languages of a translator whose published tokenizer has tokens for them."""
    if isinstance(config, TranslationConfig) and isinstance(tokenizer, PublishedTokenizer) and tokenizer.tags:
        return config.data.source_language, config.data.target_language
    return "", ""
