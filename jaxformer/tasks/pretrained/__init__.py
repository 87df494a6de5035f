"""Conversion of Hugging Face models to runs (`convert`), and of runs to Hugging Face folders (`export`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jaxformer import lazy

if TYPE_CHECKING:
    from jaxformer.tasks.pretrained.conversion import convert as convert
    from jaxformer.tasks.pretrained.exporting import export as export

__getattr__ = lazy.members(__name__, {"conversion": "convert", "exporting": "export"})
