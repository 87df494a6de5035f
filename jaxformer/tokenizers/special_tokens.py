"""The token ids with a fixed meaning, which each tokenizer chooses for itself."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

TokenizerSettings = Mapping[str, object]
"""Settings of ``tokenizer_config.json`` that are kept for export and change no tokens, such as a chat template."""

MIN_SUBWORDS = 260
"""The smallest vocabulary of subwords: each has the 256 bytes and the 4 special tokens."""


@dataclasses.dataclass(frozen=True)
class SpecialTokens:
    """The ids of padding, beginning of sequence, end of sequence and unknown text in one vocabulary.

    They belong to a tokenizer and are saved with it; the defaults are for vocabularies trained by this library. Two of
    them may share an id, as in vocabularies whose decoders begin with `pad`.

    >>> SpecialTokens(pad=1, bos=0)
    SpecialTokens(pad=1, bos=0, eos=2, unk=3)

    Raises:
      ValueError: an id is negative.
    """

    pad: int = 0
    bos: int = 1
    eos: int = 2
    unk: int = 3

    def __post_init__(self) -> None:
        for name, token in dataclasses.asdict(self).items():
            if token < 0:
                raise ValueError(f"{name} must be a token id, got {token}")

    def among(self, tokens: Sequence[int]) -> SpecialTokens:
        """Returns these tokens with the ids that they have in a vocabulary of some of the tokens."""
        numbers = {token: number for number, token in enumerate(tokens)}
        return SpecialTokens(**{name: numbers[token] for name, token in dataclasses.asdict(self).items()})

    @property
    def has_unknown(self) -> bool:
        """True if `unk` is a separate token; otherwise the vocabulary can spell every character."""
        return self.unk not in (self.pad, self.bos, self.eos)

    @property
    def ids(self) -> frozenset[int]:
        """The set of all special ids."""
        return frozenset((self.pad, self.bos, self.eos, self.unk))
