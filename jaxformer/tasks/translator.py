"""From text to text: a trained translation model, its tokenizer and its search."""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from jaxformer import decoding, functional
from jaxformer.data.tokenizer import BEGIN, END, PAD, Tokenizer
from jaxformer.decoding import Hypotheses
from jaxformer.modules.pure import Params, Pure
from jaxformer.sharding import Placement
from jaxformer.tasks.translation_config import DecodeConfig

LADDER = (8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
"""Padded source lengths: a program is compiled for each one that is met, and for no other."""

_BREAKS = str.maketrans(dict.fromkeys("\0\t\n\v\f\r\x1c\x1d\x1e\x85\u2028\u2029", " "))
"""Characters that end a line or a column, which a model that writes bytes can write too."""


@dataclasses.dataclass(frozen=True)
class Candidate:
    """One translation, on one line and without tabs, with the score that ranked it."""

    text: str
    score: float
    tokens: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class AttentionMap:
    """Which source piece each target piece looked at: weights ``[L, N, T, S]``, rows summing to 1."""

    source: tuple[str, ...]
    target: tuple[str, ...]
    weights: np.ndarray


@dataclasses.dataclass(frozen=True)
class Translator:
    """A model and its parameters, with everything needed to go from sentences to sentences."""

    net: Pure
    params: Params
    tokenizer: Tokenizer
    decode: DecodeConfig = DecodeConfig()
    placement: Placement | None = None
    """The mesh whose devices share the sentences; None is the one device."""
    steps: tuple[int, ...] = ()
    """The training steps whose parameters these are; several when they were averaged."""

    def translate(
        self, sentences: Sequence[str], *, first: int = 1, progress: Callable[[int], None] | None = None
    ) -> list[str]:
        """The best translation of each sentence, in order; one of nothing but spaces is empty."""
        return [best[0].text for best in self.candidates(sentences, first=first, progress=progress)]

    def candidates(
        self,
        sentences: Sequence[str],
        *,
        n_best: int = 1,
        first: int = 1,
        progress: Callable[[int], None] | None = None,
    ) -> list[list[Candidate]]:
        """The `n_best` translations of each sentence, best first.

        Args:
          first: what errors number the first sentence.
          progress: called with the number of sentences done after each batch.
        Raises:
          ValueError: `n_best` beyond the beam size; a sentence longer than the model's positions.
        """
        if not 1 <= n_best <= self.decode.beam_size:
            raise ValueError(f"n_best must be in [1, beam_size = {self.decode.beam_size}], got {n_best}")
        tokens = [np.append(ids, END) for ids in self.tokenizer.encode(list(sentences))]
        self._check_lengths(tokens, first)
        found: list[list[Candidate]] = [[Candidate("", 0.0, ())] * n_best for _ in sentences]
        # Equal lengths side by side waste least on padding; sorting is stable, so the result is reproducible.
        order = sorted((i for i, text in enumerate(sentences) if text.strip()), key=lambda i: len(tokens[i]))
        for start in range(0, len(order), self._together):
            chosen = order[start : start + self._together]
            hypotheses = self._search([tokens[i] for i in chosen])
            for row, i in enumerate(chosen):
                found[i] = [self._candidate(hypotheses, row, rank) for rank in range(n_best)]
            if progress is not None:
                progress(len(chosen))
        return found

    def attention(self, source: str, target: str | None = None) -> AttentionMap:
        """The cross-attention between a sentence and a translation of it (by default this model's own)."""
        target = self.translate([source])[0] if target is None else target
        rows, columns = (np.append(self.tokenizer.encode([text])[0], END) for text in (target, source))
        given = np.append(BEGIN, rows[:-1])
        weights = _cross_attention(self.net, self.params, jnp.asarray(columns)[None], jnp.asarray(given)[None])
        pieces = [(*self.tokenizer.pieces(ids[:-1]), "</s>") for ids in (columns, rows)]
        return AttentionMap(*pieces, np.asarray(weights))

    def _check_lengths(self, tokens: list[np.ndarray], first: int) -> None:
        for number, ids in enumerate(tokens, first):
            if len(ids) > self._most:
                raise ValueError(f"sentence {number} has {len(ids)} tokens, but the model has {self._most} positions")

    @property
    def _most(self) -> int:
        """The longest sequence that the model can number; sinusoidal positions have no end."""
        model = self.net.config
        return model.max_positions if model.positions == "learned" else sys.maxsize

    @property
    def _ways(self) -> int:
        return 1 if self.placement is None else self.placement.ways

    @property
    def _together(self) -> int:
        """Sentences searched together: with more devices than `batch_size`, one for each."""
        return self.decode.batch_size + -self.decode.batch_size % self._ways

    def _search(self, sources: list[np.ndarray]) -> Hypotheses:
        longest = max(len(ids) for ids in sources)
        size = min(next((step for step in LADDER if step >= longest), longest), self._most)
        num_rows = min(self._together, 1 << (len(sources) - 1).bit_length())
        num_rows += -num_rows % self._ways
        source = np.full((num_rows, size), PAD, np.int32)
        for row, ids in zip(source, sources, strict=False):
            row[: len(ids)] = ids
        valid = source != PAD
        limit = np.ceil(valid.sum(1) * self.decode.max_ratio).astype(np.int32) + self.decode.max_extra
        length = min(int(np.ceil(size * self.decode.max_ratio)) + self.decode.max_extra, self._most)
        options = (self.decode.beam_size, length, self.decode.length_penalty)
        given = source, valid, limit
        if self.placement is not None:
            here = self.placement.rows_here(num_rows)
            given = self.placement.assemble(tuple(x[here] for x in given))
        return jax.device_get(_search(self.net, options, self.placement, self.params, *given))

    def _candidate(self, hypotheses: Hypotheses, row: int, rank: int) -> Candidate:
        ids = hypotheses.tokens[row, rank, : hypotheses.lengths[row, rank]]
        ids = ids[ids != END]
        text = self.tokenizer.decode(ids).translate(_BREAKS)
        return Candidate(text, float(hypotheses.scores[row, rank]), tuple(ids.tolist()))


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _search(net: Pure, options: tuple[int, int, float], placement: Placement | None, params: Params, *given):
    """The hypotheses, whole on every device; each searches for its rows."""
    search = functools.partial(_search_rows, net, options)
    if placement is None:
        return search(params, *given)
    return jax.lax.with_sharding_constraint(placement.under(search)(params, *given), placement.replicated)


def _search_rows(net: Pure, options: tuple[int, int, float], params: Params, source, valid, limit) -> Hypotheses:
    beam_size, length, length_penalty = options
    memory = net.apply(params, source, source_valid=valid, method="encode")
    context, state = net.apply(params, memory, beam_size=beam_size, length=length, method="start")

    def step(tokens, state):
        return net.apply(params, tokens, state, context, method="step")

    return decoding.beam_search(
        step,
        state,
        beam_size=beam_size,
        length=length,
        bos=BEGIN,
        eos=END,
        pad=PAD,
        length_penalty=length_penalty,
        limit=limit,
    )


@functools.partial(jax.jit, static_argnums=0)
def _cross_attention(net: Pure, params: Params, source, target) -> jax.Array:
    query, key = net.apply(params, source, target, ("decoder.cross",), method="captured")["decoder.cross"]
    return jax.vmap(functional.attention_weights)(query, key)[:, 0]
