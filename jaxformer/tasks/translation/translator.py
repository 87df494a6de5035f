"""A trained translation model with its tokenizer and its search: text in, text out."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxformer import decoding, masks, models
from jaxformer.data.special_tokens import SpecialTokens
from jaxformer.data.tokenizer import Tokenizer
from jaxformer.decoding import Hypotheses
from jaxformer.errors import ConfigError, DataError
from jaxformer.inspection.attention_maps import PieceMap
from jaxformer.modules.pure import Params, Pure
from jaxformer.sharding import Placement
from jaxformer.tasks.translation.config import DecodeConfig

LADDER = (8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
"""Padded source lengths: one program is compiled for each that occurs."""

LONGEST = 32 * LADDER[-1]
"""Tokens of the longest source of a model that has positions without a limit; a longer one is no sentence."""

_BREAKS = str.maketrans(dict.fromkeys("\0\t\n\v\f\r\x1c\x1d\x1e\x85\u2028\u2029", " "))
"""Characters that end a line or a column; a model whose tokens are bytes can produce them."""

Net = Pure[models.EncoderDecoder, models.EncoderDecoderConfig] | Pure[models.Seq2Seq, models.Seq2SeqConfig]
"""A translation model; both kinds have the same methods."""


class SearchOptions(NamedTuple):
    """The static part of a search: a program is compiled for each value."""

    beam_size: int
    max_length: int
    length_penalty: float
    special: SpecialTokens


@dataclasses.dataclass(frozen=True)
class Candidate:
    """One translation, on one line and without tabs, with the score that ranked it."""

    text: str
    score: float
    tokens: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Translator:
    """A model and its parameters, with everything needed to translate sentences."""

    net: Net
    params: Params
    tokenizer: Tokenizer
    decode: DecodeConfig = DecodeConfig()
    placement: Placement | None = None
    """The mesh whose devices share the sentences; None means one device."""
    steps: tuple[int, ...] = ()
    """The training steps whose parameters these are; several if they were averaged."""

    def translate(
        self, sentences: Sequence[str], *, first: int = 1, progress: Callable[[int], None] | None = None
    ) -> list[str]:
        """Returns the best translation of each sentence, in order; an empty one for a sentence of spaces.

        See `candidates` for the arguments and errors.
        """
        return [best[0].text for best in self.candidates(sentences, first=first, progress=progress)]

    def candidates(
        self,
        sentences: Sequence[str],
        *,
        n_best: int = 1,
        first: int = 1,
        progress: Callable[[int], None] | None = None,
    ) -> list[list[Candidate]]:
        """Returns the `n_best` translations of each sentence, best first.

        Args:
          first: the number of the first sentence in error messages.
          progress: called with the number of sentences done after each batch.

        Raises:
          TypeError: `sentences` is one text and not a sequence of texts.
          ConfigError: `n_best` is larger than the beam.
          DataError: a sentence is longer than the model's positions.
        """
        if isinstance(sentences, str):  # each of its characters would be a sentence
            raise TypeError("sentences must be a sequence of texts, got one text; write [text]")
        if not 1 <= n_best <= self.decode.beam_size:
            raise ConfigError(f"n_best must be in [1, beam_size = {self.decode.beam_size}], got {n_best}")
        eos = self.tokenizer.special.eos
        tokens = [np.append(ids, eos) for ids in self.tokenizer.encode(list(sentences))]
        self._check_lengths(tokens, first)
        results: list[list[Candidate]] = [[Candidate("", 0.0, ())] * n_best for _ in sentences]
        # Sentences of similar length need the least padding. The sort is stable, so the result is reproducible.
        order = sorted((i for i, text in enumerate(sentences) if text.strip()), key=lambda i: len(tokens[i]))
        for start in range(0, len(order), self._batch_size):
            indices = order[start : start + self._batch_size]
            hypotheses = self._search([tokens[i] for i in indices])
            for row, i in enumerate(indices):
                results[i] = [self._candidate(hypotheses, row, rank) for rank in range(n_best)]
            if progress is not None:
                progress(len(indices))
        return results

    def attention(self, source: str, target: str | None = None) -> PieceMap:
        """Returns the cross-attention between a sentence and a translation of it, by default this model's own.

        Row t holds the weights with which the model predicts target piece t.

        Raises:
          ConfigError: the model has no attention.
        """
        target = self.translate([source])[0] if target is None else target
        return self.attentions([source], [target])[0]

    def attentions(self, sources: Sequence[str], targets: Sequence[str]) -> list[PieceMap]:
        """Returns the cross-attention of each pair of a sentence and a translation: see `attention`."""
        if getattr(self.net.config, "attention", "") == "none":
            raise ConfigError("this model has no attention to show: it was trained with model.attention none")
        special = self.tokenizer.special
        columns, labels = (
            [np.append(ids, special.eos) for ids in self.tokenizer.encode(list(texts))] for texts in (sources, targets)
        )
        found: list[PieceMap] = []
        for start in range(0, len(columns), self.decode.batch_size):
            batch = slice(start, start + self.decode.batch_size)
            source, valid = self._padded(columns[batch])
            target, _ = self._padded([np.append(special.bos, ids[:-1]) for ids in labels[batch]])
            weights = np.asarray(_cross_attention(self.net, self.params, source, valid, target))
            for row, (given, said) in enumerate(zip(columns[batch], labels[batch], strict=True)):
                pieces = [(*self.tokenizer.pieces(ids[:-1]), "</s>") for ids in (given, said)]
                found.append(PieceMap(pieces[0], pieces[1], weights[:, row, :, : len(said), : len(given)]))
        return found

    def _padded(self, sequences: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """Returns tokens ``[B, S]`` and which of them are real, with S from the `LADDER` and B a power of 2."""
        longest = max(len(ids) for ids in sequences)
        size = min(next((step for step in LADDER if step >= longest), longest), self._max_positions)
        tokens = np.full(
            (1 << (len(sequences) - 1).bit_length(), max(size, longest)), self.tokenizer.special.pad, np.int32
        )
        valid = np.zeros(tokens.shape, bool)
        for row, ids in enumerate(sequences):
            tokens[row, : len(ids)], valid[row, : len(ids)] = ids, True
        return tokens, valid

    def _check_lengths(self, tokens: list[np.ndarray], first: int) -> None:
        for number, ids in enumerate(tokens, first):
            if len(ids) > self._max_positions:
                raise DataError(
                    f"sentence {number} has {len(ids):,} tokens, but the model takes at most {self._max_positions:,}; "
                    "split it"
                )

    @property
    def _max_positions(self) -> int:
        """The length of the longest sequence that is translated; most models have no limit of their own."""
        return self.net.config.length_limit or LONGEST

    @property
    def _ways(self) -> int:
        return 1 if self.placement is None else self.placement.ways

    @property
    def _batch_size(self) -> int:
        """The number of sentences searched together: a multiple of the number of devices that share them."""
        return self.decode.batch_size + -self.decode.batch_size % self._ways

    def _search(self, sources: list[np.ndarray]) -> Hypotheses:
        longest = max(len(ids) for ids in sources)
        size = min(next((step for step in LADDER if step >= longest), longest), self._max_positions)
        num_rows = min(self._batch_size, 1 << (len(sources) - 1).bit_length())
        num_rows += -num_rows % self._ways
        source = np.full((num_rows, size), self.tokenizer.special.pad, np.int32)
        valid = np.zeros(source.shape, bool)
        for row, ids in enumerate(sources):
            source[row, : len(ids)], valid[row, : len(ids)] = ids, True
        ratio, extra = self.decode.max_ratio, self.decode.max_extra
        max_lengths = np.ceil(valid.sum(1) * ratio).astype(np.int32) + extra
        max_length = min(int(np.ceil(size * ratio)) + extra, self._max_positions)
        arrays = source, valid, max_lengths
        if self.placement is not None:
            here = self.placement.rows_here(num_rows)
            arrays = self.placement.assemble(tuple(x[here] for x in arrays))
        options = SearchOptions(self.decode.beam_size, max_length, self.decode.length_penalty, self.tokenizer.special)
        return jax.device_get(_search(self.net, options, self.placement, self.params, *arrays))

    def _candidate(self, hypotheses: Hypotheses, row: int, rank: int) -> Candidate:
        ids = hypotheses.tokens[row, rank, : hypotheses.lengths[row, rank]]
        ids = np.asarray(ids[ids != self.tokenizer.special.eos])
        text = self.tokenizer.decode(ids.tolist()).translate(_BREAKS)
        return Candidate(text, float(hypotheses.scores[row, rank]), tuple(ids.tolist()))


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _search(
    net: Net, options: SearchOptions, placement: Placement | None, params: Params, *arrays: jax.Array
) -> Hypotheses:
    """Returns the hypotheses, replicated on every device; each device searches for its rows."""
    search = functools.partial(_search_rows, net, options)
    if placement is None:
        return search(params, *arrays)
    return jax.lax.with_sharding_constraint(placement.under(search)(params, *arrays), placement.replicated)


def _search_rows(net: Net, options: SearchOptions, params: Params, source: Any, valid: Any, max_lengths: Any):
    model: Any = net.bind(params)
    memory = model.encode(source, source_valid=valid)
    context, state = model.start(memory, beam_size=options.beam_size, length=options.max_length)
    return decoding.beam_search(
        lambda tokens, state: model.step(tokens, state, context),
        state,
        beam_size=options.beam_size,
        max_length=options.max_length,
        bos=options.special.bos,
        eos=options.special.eos,
        pad=options.special.pad,
        length_penalty=options.length_penalty,
        max_lengths=max_lengths,
    )


@functools.partial(jax.jit, static_argnums=0)
def _cross_attention(net: Net, params: Params, source: Any, valid: Any, target: Any) -> jax.Array:
    """Returns the weights ``[L, B, N, T, S]``."""
    captured = net.bind(params).captured(source, target, ("decoder.cross",), source_valid=valid)["decoder.cross"]
    return jax.vmap(lambda layer: layer.weights(mask=masks.padding(valid)))(captured)
