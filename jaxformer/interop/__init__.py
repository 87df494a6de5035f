"""Models in formats that other programs read: those of Hugging Face and CTranslate2, and exported programs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jaxformer import lazy

if TYPE_CHECKING:
    from jaxformer.interop import ctranslate2 as ctranslate2
    from jaxformer.interop import equivalent as equivalent
    from jaxformer.interop import export as export
    from jaxformer.interop import hub as hub
    from jaxformer.interop.pretrained import FAMILIES as FAMILIES
    from jaxformer.interop.pretrained import Pretrained as Pretrained
    from jaxformer.interop.pretrained import load_pretrained as load_pretrained
    from jaxformer.interop.pretrained import save_pretrained as save_pretrained

__getattr__ = lazy.members(
    __name__,
    {
        "ctranslate2": "",
        "equivalent": "",
        "export": "",
        "hub": "",
        "pretrained": "FAMILIES Pretrained load_pretrained save_pretrained",
    },
)
