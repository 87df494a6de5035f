"""Conversion of Hugging Face models to runs (`convert`), and of runs to folders of Hugging Face and CTranslate2."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jaxformer import lazy

if TYPE_CHECKING:
    from jaxformer.tasks.pretrained.conversion import convert as convert
    from jaxformer.tasks.pretrained.exporting import export as export
    from jaxformer.tasks.pretrained.serving import export_ctranslate2 as export_ctranslate2

__getattr__ = lazy.members(__name__, {"conversion": "convert", "exporting": "export", "serving": "export_ctranslate2"})
