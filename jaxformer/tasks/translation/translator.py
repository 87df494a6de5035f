"""A trained translation model with its tokenizer and its search: text in, text out."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import math
from collections.abc import Callable, Collection, Sequence
from typing import Any, Literal, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np

from jaxformer import decoding
from jaxformer.data.batch import few_rows
from jaxformer.decoding import Hypotheses
from jaxformer.errors import ConfigError, DataError, did_you_mean, first_few
from jaxformer.evaluation.alignments import Link, strongest_links
from jaxformer.functional.tokens import Tokens
from jaxformer.inspection import attention_maps
from jaxformer.inspection.attention_maps import AttentionWeights
from jaxformer.inspection.pages import View
from jaxformer.modules.head import joint_log_probs
from jaxformer.modules.pure import Params
from jaxformer.reprs import brief_with_methods
from jaxformer.tasks import views
from jaxformer.tasks.batched import batched, check_texts, column, in_order, padded
from jaxformer.tasks.generation import TextPredictor
from jaxformer.tasks.search import Candidate, Net, Scored, Sources
from jaxformer.tasks.translation.config import DecodeConfig
from jaxformer.tokenizers.base import encode_texts
from jaxformer.tokenizers.normalization import Side
from jaxformer.tokenizers.segmentation import SPACE
from jaxformer.tokenizers.subwords import ESCAPE

BUCKETS = (8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
"""The padded lengths: one program is compiled for each that occurs."""

LONGEST = 32 * BUCKETS[-1]
"""The maximum number of source tokens for a model without a position limit; a longer text is not a sentence."""

_FEW = 12
"""The number of languages that a message names."""


class _Input(NamedTuple):
    """A sentence to translate."""

    source: np.ndarray
    prefix: np.ndarray
    """The tokens that its translation begins with."""
    limit: int
    """The maximum number of tokens of its translation."""
    number: int


@dataclasses.dataclass(frozen=True)
class Translator(TextPredictor):
    """A model and its parameters, with everything needed to translate sentences."""

    decode: DecodeConfig = DecodeConfig()
    tags: Literal["none", "source", "target", "both"] = "none"
    """The side whose first token says the target language, or both: each then says its own; see `to`."""
    source_language: str = ""
    """The language of sources, for tags on both sides."""

    __repr__ = brief_with_methods

    def to(self, language: str = "", source: str = "") -> Self:
        """Returns the translator into another language, for a run with `data.tags`, also in untrained directions.

        Args:
          language: the target language; by default, it stays the same.
          source: the language of sources, for a run with tags on both sides; by default, it stays the same.

        Raises:
          ConfigError: the run has no tags, or none for one of these languages.
        """
        if self.tags == "none":
            code = language or source
            raise ConfigError(f"cannot choose {code} as the language: the run was trained without data.tags")
        if source and self.tags != "both":
            raise ConfigError(f"cannot choose {source} as the language of sources: the run's data.tags is {self.tags}")
        for code in filter(None, (source, language)):
            if code not in self.tokenizer.tags:
                raise ConfigError(f"the run has no language {code!r}{_meant(code, self.tokenizer.tags)}")
        return dataclasses.replace(
            self, language=language or self.language, source_language=source or self.source_language
        )

    def _begin(self, side: Side) -> tuple[int, ...]:
        """Returns the tokens that each text of a side begins with."""
        if self.tags not in (side, "both"):
            return self.tokenizer.start
        language, what = self.language, "to"
        if self.tags == "both" and side == "source":
            language, what = self.source_language, "from"
        if language not in self.tokenizer.tags:
            some = first_few([*self.tokenizer.tags], _FEW)
            raise ConfigError(f"the run translates {what} {some}: choose one with --{what} LANGUAGE")
        return (self.tokenizer.tags[language],)

    def translate(self, sentences: Sequence[str], **options: Any) -> list[str]:
        """Returns the best translation of each sentence, in order, empty for a blank sentence: see `candidates`."""
        return [best[0].text for best in self.candidates(sentences, **options)]

    def candidates(
        self,
        sentences: Sequence[str],
        *,
        n_best: int = 1,
        first: int = 1,
        prefixes: Sequence[str] | None = None,
        warn: Callable[[str], None] | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> list[list[Candidate]]:
        """Returns the `n_best` translations of each sentence, best first; fewer if a beam finds fewer.

        Args:
          first: the number of the first sentence, for error messages and random draws.
          prefixes: the beginning of the translation of each sentence.
          warn: called with a message for each sentence that is too long; then only its beginning is translated.
          progress: called with the number of sentences done since the last call.

        Raises:
          TypeError: `sentences` is one text and not a sequence of texts.
          ValueError: there are more or fewer prefixes than sentences.
          ConfigError: `n_best` is below 1, or above the number of translations that the search finds; a prefix is too
            long.
          DataError: a sentence is longer than the model's positions, and there is no `warn`.
        """
        check_texts(sentences=sentences)
        if prefixes is not None and len(prefixes) != len(sentences):
            raise ValueError(f"there must be a prefix for each of {len(sentences)} sentences, got {len(prefixes)}")
        number = self.decode.num_texts(n_best)
        tokens = self._tokens(sentences, "source", first, warn)
        begin = np.asarray(self._begin("target"), np.int32)
        words = encode_texts(self.tokenizer, prefixes, "target") if prefixes else [begin] * len(sentences)
        if prefixes and self.tags in ("target", "both"):
            words = [np.concatenate([begin, ids]) for ids in words]
        not_blank = [i for i, text in enumerate(sentences) if text.strip()]
        inputs = [self._input(tokens[i], words[i], first + i) for i in not_blank]
        search = lambda batch: self._search([inputs[i] for i in batch], number)
        lengths = [len(one.source) for one in inputs]
        best = dict(zip(not_blank, self._best(search, lengths, self._rows, n_best, progress), strict=True))
        return [best.get(i, [Candidate("", 0.0, ())] * n_best) for i in range(len(sentences))]

    def score(
        self,
        sources: Sequence[str],
        targets: Sequence[str],
        *,
        first: int = 1,
        warn: Callable[[str], None] | None = None,
    ) -> list[Scored]:
        """Returns the log-probability of every token of each given translation, and of its end token.

        An ensemble averages its models according to `decode.average`. Tokens with which every text begins have no
        score.

        Args:
          first: the number of the first pair in messages.
          warn: called with a message for each sentence that is too long; then only its beginning is read.

        Raises:
          TypeError: `sources` or `targets` is one text.
          ValueError: there are more or fewer targets than sources.
          DataError: see `candidates`.
        """
        pairs = list(zip(*(self._tokens(*side, first, warn) for side in _sides(sources, targets)), strict=True))
        nets, params = zip(*self._models, strict=True)
        begin = len(self._begin("target"))

        def run(batch: list[int]) -> Callable[[], jax.Array]:
            source, labels = (self._padded([pairs[i][side] for i in batch]) for side in (0, 1))
            shifted = np.pad(labels.ids[:, :-1], ((0, 0), (1, 0)), constant_values=self.tokenizer.special.bos)
            inputs = (params, source, shifted, labels.ids)
            return functools.partial(_pair_log_probs, nets, self.decode.average, *inputs)

        sizes = [len(source) + len(target) for source, target in pairs]
        log_probs = in_order(batched(run, sizes, self.decode.batch_size, usual=512))
        return [
            Scored(tuple(self.tokenizer.pieces(ids[begin:])), tuple(row[begin : len(ids)].tolist()))
            for (_, ids), row in zip(pairs, log_probs, strict=True)
        ]

    def alignments(self, sources: Sequence[str], targets: Sequence[str]) -> list[list[Link]]:
        """Returns links between the words of each pair, by the head of `attention_maps.most_aligned`.

        Spaces separate words, even if the tokenizer splits one into several. A target word has no link if its largest
        weight is on the source's end. A pair has no links if a side is empty or too long to be translated as a whole.
        The same holds if its pieces spell another text than its words, because of a tokenizer's own normalization.

        Raises:
          ConfigError: the model has no attention.
          TypeError, ValueError: see `score`.
        """
        longest = min(self._max_positions, BUCKETS[-1])
        spelled, sides = self.tokenizer.normalizer.spelled, _sides(sources, targets)
        lengths = [[*map(len, self._whole(texts, side))] for texts, side in sides]
        words_of = [[spelled(text.replace(SPACE, ESCAPE).split(), side) for text in texts] for texts, side in sides]
        sizes = zip(*words_of, *lengths, strict=True)
        pairs = [i for i, (a, b, s, t) in enumerate(sizes) if a and b and all(a) and all(b) and max(s, t) <= longest]
        links: list[list[Link]] = [[] for _ in sources]
        maps = self.attentions(*([x[i] for i in pairs] for x in (sources, targets)))
        for i, attention in zip(pairs, maps, strict=True):
            layer, head = attention_maps.most_aligned(attention)
            source, target = (side[i] for side in words_of)
            try:
                words = attention_maps.between_words(attention, source, target)
            except ValueError:
                continue
            weights = attention_maps.select(words, layer=layer, head=head).weights[:-1]
            links[i] = sorted(link for link in strongest_links(weights) if link[0] < len(source))
        return links

    def attention(self, source: str, target: str | None = None) -> AttentionWeights:
        """Returns the cross-attention between a sentence and its translation, by default the model's own translation.

        Row t has the weights of the step that predicts target piece t.

        Raises:
          ConfigError: the model has no attention.
          DataError: a text is longer than the model's positions.
        """
        target = self.translate([source])[0] if target is None else target
        return self.attentions([source], [target])[0]

    def view(self, source: str, target: str | None = None, *, search: bool = True) -> View:
        """Returns every attention to a sentence and its translation, by default the model's own.

        A row of self-attention is a token that is read, one of cross-attention a token that is predicted. With
        `search`, there is also what a beam search considered.

        Raises:
          ConfigError, DataError: see `attention`.
        """
        self._check_attention()
        tree = ()
        if target is None:
            target = self.translate([source])[0]
            if search:
                (ids,) = self._tokens([source], "source", 1, None)
                one = self._input(ids, np.asarray(self._begin("target"), np.int32), 1)
                tree = self._tree(lambda trace: self._search([one], self.decode.num_texts(1), trace))
        read, labels = (self._tokens(texts, side, 1, None)[0] for texts, side in _sides([source], [target]))
        inputs = self._padded([read]), self._padded([np.append(self.tokenizer.special.bos, labels[:-1])]).ids
        weights = views.all_weights(self.net, self.params, *inputs)
        guesses = views.predictions(self.net, self.params, *inputs, tokenizer=self.tokenizer, number=len(labels))
        sources, targets = ((*self.tokenizer.pieces(ids[:-1]), "</s>") for ids in (read, labels))
        queries = {"encoder.self": sources, "decoder.self": ("<s>", *targets[:-1]), "decoder.cross": targets}
        keys = queries | {"decoder.cross": sources}
        found = {
            name: views.cropped(x, queries[name], keys[name], () if name == "encoder.self" else guesses)
            for name, x in weights.items()
        }
        found["decoder.cross"] = self._without_starts(found["decoder.cross"])
        return View(source, found, {"translation": target}, tree)

    def attentions(self, sources: Sequence[str], targets: Sequence[str]) -> list[AttentionWeights]:
        """Returns the cross-attention of each pair of a sentence and a translation: see `attention`.

        Tokens with which every text begins, such as ``<s>`` of BART, are left out, and so are the weights on them.

        Raises:
          ConfigError, TypeError, ValueError: see `alignments`.
          DataError: a text is longer than the model's positions.
        """
        self._check_attention()
        bos = self.tokenizer.special.bos
        columns, labels = (self._tokens(*side, 1, None) for side in _sides(sources, targets))

        def run(batch: list[int]) -> Callable[[], jax.Array]:
            source = self._padded([columns[i] for i in batch])
            target = self._padded([np.append(bos, labels[i][:-1]) for i in batch]).ids
            return functools.partial(_cross_attention, self.net, self.params, source, target)

        sizes = [len(source) * len(target) / 64 for source, target in zip(columns, labels, strict=True)]  # of weights
        found = in_order(batched(run, sizes, self.decode.batch_size))
        names = lambda ids: (*self.tokenizer.pieces(ids[:-1]), "</s>")
        return [
            self._without_starts(AttentionWeights(names(s), names(t), weights[:, :, : len(t), : len(s)]))
            for s, t, weights in zip(columns, labels, found, strict=True)
        ]

    def _check_attention(self) -> None:
        if not self.net.config.has_attention:
            raise ConfigError("this model has no attention to show: it was trained with model.attention none")

    def _without_starts(self, cross: AttentionWeights) -> AttentionWeights:
        """Returns cross-attention without the tokens with which every text begins."""
        before, begin = len(self._begin("source")), len(self._begin("target"))
        weights, guesses = cross.weights[:, :, begin:, before:], cross.predictions[begin:]
        return AttentionWeights(cross.source[before:], cross.target[begin:], weights, predictions=guesses)

    def _padded(self, sequences: Sequence[np.ndarray]) -> Tokens[np.ndarray]:
        """Returns tokens ``[B, S]``, with S one of the `BUCKETS` and B a power of 2."""
        shape = 1 << (len(sequences) - 1).bit_length(), self._bucket(max(map(len, sequences)))
        return padded(sequences, shape, self.tokenizer.special.pad)

    def _whole(self, sentences: Sequence[str], side: Side) -> list[np.ndarray]:
        """Returns the tokens of each sentence, with that of its language, if it has one, and its end token."""
        start = np.asarray(self._begin(side) if self.tags in (side, "both") else (), np.int32)
        end = [self.tokenizer.special.eos]
        return [np.concatenate([start, ids, end]) for ids in encode_texts(self.tokenizer, sentences, side)]

    def _tokens(
        self, sentences: Sequence[str], side: Side, first: int, warn: Callable[[str], None] | None
    ) -> list[np.ndarray]:
        """Returns the tokens of `_whole`; with `warn`, long sentences are truncated."""
        eos, tokens = self.tokenizer.special.eos, self._whole(sentences, side)
        longest = self._max_positions if warn is None else min(self._max_positions, BUCKETS[-1])
        for i, ids in enumerate(tokens):
            if len(ids) <= longest:
                continue
            about = f"sentence {first + i} has {len(ids):,} tokens"
            if warn is None:
                raise DataError(f"{about}, but the model takes at most {longest:,}; split it")
            warn(f"{about}; only the first {longest:,} are read")
            tokens[i] = np.append(ids[: longest - 1], eos)
        return tokens

    def _longest(self, length: int) -> int:
        """Returns the maximum number of tokens of a translation of a source of this length."""
        decode = self.decode
        limit = min(math.ceil(length * decode.max_ratio) + decode.max_extra, self._max_positions)
        return max(1, min(limit, decode.max_length or limit))

    def _input(self, source: np.ndarray, prefix: np.ndarray, number: int) -> _Input:
        """Returns a sentence with its limit; refuses a prefix that leaves no room."""
        limit = self._longest(len(source))
        if len(prefix) == len(self._begin("target")) >= limit:
            raise ConfigError(f"decode.max_length must be more than {limit}, with the token that each text begins with")
        if len(prefix) >= limit:
            raise ConfigError(
                f"sentence {number}: the prefix has {len(prefix)} tokens, but a translation may have {limit} with its "
                "end; shorten the prefix or raise decode.max_extra and decode.max_length"
            )
        return _Input(source, prefix, limit, number)

    @property
    def _max_positions(self) -> int:
        """The maximum number of source tokens; most models have no limit themselves."""
        return min(model.net.config.length_limit or LONGEST for model in self._models)

    def _search(
        self, inputs: Sequence[_Input], number: int, trace: decoding.BeamTrace | None = None
    ) -> Callable[[], Hypotheses]:
        decode, pad = self.decode, self.tokenizer.special.pad
        rows = self._shared(few_rows(len(inputs), self._rows))
        sources, prefixes, limits, numbers = zip(*inputs, strict=True)
        size, width = self._bucket(max(map(len, sources))), max(map(len, prefixes))
        longest = self._longest(size)
        prefix = padded(prefixes, (rows, self._bucket(width) if width else 0), 0)
        least = [max(decode.min_length, math.ceil(decode.min_ratio * len(ids))) for ids in sources]
        batch = Sources(
            inputs=padded(sources, (rows, size), pad),
            max_lengths=column(limits, rows, 1),
            min_lengths=column(map(min, [n + 1 for n in least], limits), rows, 0),  # end token included
            prefix=prefix.ids[:, :longest],
            prefix_lengths=column(map(len, prefixes), rows, 0),
            numbers=column(numbers, rows, 0)[:, None],
        )
        return self._hypotheses(decode, batch, number=number, max_length=longest, trace=trace)

    @property
    def _rows(self) -> int:
        """The number of sentences in a full batch."""
        return self._shared(self.decode.batch_size)

    def _bucket(self, length: int) -> int:
        """Returns the padded length of sequences: the smallest of the `BUCKETS` that holds them."""
        return max(length, min(next((size for size in BUCKETS if size >= length), length), self._max_positions))


def _meant(code: str, languages: Collection[str]) -> str:
    """Returns a hint with the language that an unknown code may mean; codes of one language begin alike."""
    alike = [known for known in languages if known.lower().startswith(code[:2].lower())]
    if len(code) > 1 and alike:
        return f"; did you mean {difflib.get_close_matches(code, alike, n=1, cutoff=0)[0]!r}?"
    return f"; there are {', '.join(languages)}" if len(languages) <= _FEW else did_you_mean(code, languages)


def _sides(sources: Sequence[str], targets: Sequence[str]) -> tuple[tuple[list[str], Side], ...]:
    """Returns both sides of pairs, after checking that they are sequences of equal length."""
    check_texts(sources=sources, targets=targets)
    if len(sources) != len(targets):
        raise ValueError(f"there must be a target for each of {len(sources)} sources, got {len(targets)}")
    return (list(sources), "source"), (list(targets), "target")


@functools.partial(jax.jit, static_argnums=(0, 1))
def _pair_log_probs(
    nets: tuple[Net, ...],
    average: decoding.Average,
    params: tuple[Params, ...],
    source: Tokens[jax.Array],
    target: jax.Array,
    labels: jax.Array,
) -> jax.Array:
    """Returns the log-probability ``[B, T]`` of each label, given the target tokens up to its position."""
    bound = [net.bind(own) for net, own in zip(nets, params, strict=True)]
    states = [model.states(source, target)[0] for model in bound]
    combine = functools.partial(decoding.mean_log_probs, average=average)
    return joint_log_probs([model.head for model in bound], states, labels, combine)


@functools.partial(jax.jit, static_argnums=0)
def _cross_attention(net: Net, params: Params, source: Tokens[Any], target: Any) -> jax.Array:
    """Returns the weights ``[B, L, N, T, S]``."""
    captured = net.bind(params).captured(source, target, names=["decoder.cross"])
    return jnp.moveaxis(captured["decoder.cross"].weights(), 1, 0)
