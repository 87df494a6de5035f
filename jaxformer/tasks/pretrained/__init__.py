"""Models of Hugging Face become runs (`convert`), and runs become folders of Hugging Face (`export`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jaxformer import lazy

if TYPE_CHECKING:
    from jaxformer.tasks.pretrained.conversion import convert as convert
    from jaxformer.tasks.pretrained.exporting import export as export

__getattr__ = lazy.members(__name__, {"conversion": "convert", "exporting": "export"})
