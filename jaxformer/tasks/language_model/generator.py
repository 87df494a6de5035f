"""A trained language model with its tokenizer: it continues texts, and scores them."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np

from jaxformer import decoding, models
from jaxformer.data.batch import few_rows
from jaxformer.errors import ConfigError, DataError
from jaxformer.inspection.pages import View
from jaxformer.modules.pure import Params, Pure
from jaxformer.reprs import brief_with_methods
from jaxformer.tasks import views
from jaxformer.tasks.batched import batched, check_texts, column, in_order, padded
from jaxformer.tasks.config import Beam
from jaxformer.tasks.generation import TextPredictor, limits_of
from jaxformer.tasks.language_model.config import DecodeConfig
from jaxformer.tasks.search import Candidate, Scored, Sources, VocabularyLimits, normalization

ROWS = 16
"""The largest number of texts that one program extends, if several programs run at once: each has its own caches."""

SHORT = 128
"""The padded length of short contexts, if others are longer."""


class _Text(NamedTuple):
    """A text being extended."""

    prompt: int
    draw: int
    ids: list[int]
    log_probs: list[float]
    """The log-probabilities of the added tokens."""
    end: int
    """The number of tokens at which the text is complete."""


@dataclasses.dataclass(frozen=True)
class TextGenerator(TextPredictor):
    """A language model, its parameters and its tokenizer."""

    net: Pure[models.LanguageModel, models.LanguageModelConfig]
    decode: DecodeConfig
    _: dataclasses.KW_ONLY
    window: int
    """The context length of training, in tokens."""

    __repr__ = brief_with_methods

    @property
    def batch_size(self) -> int:
        """The number of prompts of a call to `continuations` that gives each program `ROWS` texts, without draws."""
        return ROWS * self._num_threads

    def generate(self, prompts: Sequence[str], **options: Any) -> list[str]:
        """Returns each prompt followed by a continuation of at most `decode.max_tokens` tokens: see `continuations`."""
        return [best[0].text for best in self.continuations(prompts, **options)]

    def ensemble_with(self, others: Sequence[Self]) -> Self:
        """Returns an ensemble of this model and others, with the shortest of their context lengths."""
        window = min([self.window, *(other.window for other in others)])
        return dataclasses.replace(super().ensemble_with(others), window=window)

    def continuations(
        self,
        prompts: Sequence[str],
        *,
        n_best: int = 1,
        first: int = 0,
        warn: Callable[[str], None] | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> list[list[Candidate]]:
        """Returns `n_best` continuations of each prompt, best first; fewer if a beam finds fewer.

        A continuation's `text` includes the prompt, its `tokens` do not.

        Draws are ordered by their probability, or by minimum Bayes risk. A drawn or greedy text that fills the window
        is continued from the last half window; earlier tokens are forgotten. A beam stays within the window.

        Args:
          first: the number of the first prompt; draws are a function of it.
          warn: called with a message about characters that are not in the vocabulary, which are then left out, and
            about a prompt that is too long to be read as a whole.
          progress: called with the number of new tokens after each window.

        Raises:
          TypeError: `prompts` is one text and not a sequence of texts.
          ConfigError: `n_best` is below 1, or above the number of continuations that are found; or a beam's text
            would be longer than the window.
          DataError: a prompt has characters that are not in the vocabulary, and there is no `warn`.
        """
        check_texts(prompts=prompts)
        finder, number, extend = self.decode.finder, self.decode.num_texts(n_best), self._grown
        normalize: Callable[..., Any] = lambda total, length, *, ended: total
        if isinstance(finder, Beam):
            number, normalize = 1, normalization(finder, count_prefix=False)
            if finder.beam_size > 1:
                extend = self._beam
        texts = list[_Text]()
        for i, ids in enumerate(self._encode(*pair, warn) for pair in enumerate(prompts, first + 1)):
            end = len(ids) + self.decode.max_tokens
            texts += [_Text(first + i, draw, list(ids), [], end) for draw in range(number)]
            if warn and extend == self._grown and (read := len(self._context(ids))) < len(ids):
                size = f"{len(ids):,} tokens, and the window of the model {self.window:,}"
                warn(f"text {first + i + 1} has {size}; only the last {read:,} are read")
        done: list[list[Candidate]] = [[] for _ in prompts]
        for text in extend(texts, progress or (lambda number: None)):
            total, length = sum(text.log_probs, 0.0), len(text.log_probs)
            done[text.prompt - first].append(
                Candidate(
                    self._decoded(text, prompts[text.prompt - first]),
                    float(normalize(np.float32(total), np.int32(max(1, length)), ended=self._has_ended(text))),
                    tuple(text.ids[len(text.ids) - length :]),
                    total,
                    tuple(text.log_probs),
                )
            )
        return self._ranked([sorted(own, key=lambda one: -one.score) for own in done], n_best)

    def _grown(self, texts: list[_Text], progress: Callable[[int], None]) -> list[_Text]:
        """Returns the texts, extended window by window; a text for which no token is allowed ends early."""
        rounds, growing = 0, texts
        while growing := [text for text in growing if len(text.ids) < text.end and not self._has_ended(text)]:
            contexts, grown = [self._context(text.ids) for text in growing], []
            for text, length, found in self._search(growing, contexts, rounds):
                new = slice(length, found.lengths[0])
                text.ids.extend(found.tokens[0, new].tolist())
                text.log_probs.extend(found.token_log_probs[0, new].tolist())
                if number := int(found.lengths[0]) - length:
                    grown.append(text)
                    progress(number)
            rounds, growing = rounds + 1, grown
        return texts

    def _decoded(self, text: _Text, prompt: str) -> str:
        """Returns a text without its end token, and without the encoding of an empty prompt, such as a line break."""
        ids = text.ids[:-1] if self._has_ended(text) else text.ids
        given = "" if prompt else self.tokenizer.decode(text.ids[: len(text.ids) - len(text.log_probs)])
        return self.tokenizer.decode(ids)[len(given) :]

    def _has_ended(self, text: _Text) -> bool:
        return bool(text.log_probs) and text.ids[-1] in self._ends

    def _beam(self, texts: list[_Text], progress: Callable[[int], None]) -> list[_Text]:
        """Returns the hypotheses of all texts, in order of the texts."""
        if (longest := max((text.end for text in texts), default=0)) > self.window + 1:
            raise ConfigError(
                f"a prompt with its continuation by a beam may have {self.window + 1} tokens, the model's window, got "
                f"{longest}; lower decode.max_tokens, or take decode.search greedy"
            )
        hypotheses = []
        for text, given, found in self._search(texts, [text.ids for text in texts], 0):
            for rank in range(len(found.lengths)):
                length = found.lengths[rank] or text.end
                ids, own = found.tokens[rank, :length].copy(), found.token_log_probs[rank, :length]
                if not found.lengths[rank]:  # there are fewer continuations than beam slots
                    ids[:given], own = text.ids, np.full_like(own, -np.inf)
                hypotheses.append(text._replace(ids=ids.tolist(), log_probs=own[given:].tolist()))
            progress(self.decode.max_tokens)
        return sorted(hypotheses, key=lambda text: text.prompt)

    def score(self, texts: Sequence[str], *, first: int = 1, warn: Callable[[str], None] | None = None) -> list[Scored]:
        """Returns the log-probability of every token of each text except its first, which is only context.

        A text that is longer than the window is scored in windows; each begins with the last token of the one before.
        Rows that pad the table have a share of the probability, as in the loss and in a greedy or beam search.
        An ensemble averages its models according to `decode.average`.

        Args:
          first: the number of the first text in messages.
          warn: see `continuations`.

        Raises:
          TypeError, DataError: see `continuations`.
        """
        check_texts(texts=texts)
        nets, params = zip(*self._models, strict=True)
        encoded = [self._encode(number, text, warn) for number, text in enumerate(texts, first)]
        windows = [
            (i, ids[at : at + self.window + 1])
            for i, ids in enumerate(encoded)
            for at in range(0, len(ids) - 1, self.window)
        ]

        def run(batch: list[int]) -> Callable[[], jax.Array]:
            window = windows[batch[0]][1]
            length = min(self.window, _padded(len(window) - 1)) + 1
            tokens = padded([window], (1, length), self.tokenizer.special.pad).ids
            return functools.partial(_log_probs, nets, self.decode.average, params, tokens)

        log_probs: list[list[float]] = [[] for _ in texts]
        for (i, window), row in zip(windows, in_order(batched(run, [1] * len(windows), rows=1)), strict=True):
            log_probs[i] += row[: len(window) - 1].tolist()
        pieces = (tuple(self.tokenizer.pieces(ids[1:])) for ids in encoded)
        return [Scored(*one) for one in zip(pieces, map(tuple, log_probs), strict=True)]

    def view(self, text: str) -> View:
        """Returns the self-attention of a text, and what the model predicts after each of its tokens.

        Raises:
          DataError: the text has more tokens than the window, or see `continuations`.
        """
        special, ids = self.tokenizer.special, self._encode(1, text)
        if len(ids) > self.window:
            raise DataError(f"the text has {len(ids):,} tokens, but the window of the model {self.window:,}")
        tokens = padded([ids], (1, min(self.window, _padded(len(ids)))), special.pad)
        guesses = views.predictions(self.net, self.params, tokens, tokenizer=self.tokenizer, number=len(ids))
        pieces = tuple(self.tokenizer.pieces(ids))
        return View(text, views.self_attention(self.net, self.params, tokens, pieces=pieces, guesses=guesses))

    def _encode(self, number: int, prompt: str, warn: Callable[[str], None] | None = None) -> list[int]:
        """Returns the tokens of a text, which begins with those of every text, or with a line break if it is empty."""
        start, special = list(self.tokenizer.start), self.tokenizer.special
        if start and not prompt:
            return start
        unk, ids = special.unk, self.tokenizer.encode([prompt or "\n"])[0].tolist()
        if unk not in ids or not special.has_unknown:
            return start + ids
        blank = self.tokenizer.encode([" "])[0].tolist()
        if not prompt:  # the texts of training had no line breaks
            return blank
        unknown = sorted({c for c in prompt if unk in self.tokenizer.encode([c])[0]})
        about = f"text {number}: the model's vocabulary has no {', '.join(map(repr, unknown[:10]))}"
        if warn is None:
            raise DataError(about)
        warn(f"{about}; left out")
        return start + ([token for token in ids if token != unk] or blank)

    def _context(self, ids: list[int]) -> list[int]:
        """Returns the tokens of a text to read as context: all if they fit, else half a window after the start."""
        start = list(self.tokenizer.start)
        return ids[:] if len(ids) < self.window else start + ids[-max(self.window // 2 - len(start), 1) :]

    def _search(
        self, texts: list[_Text], contexts: list[list[int]], rounds: int
    ) -> Iterator[tuple[_Text, int, decoding.Hypotheses]]:
        """Yields each text, the length of its context, and its hypotheses, to the end of the window or of the text.

        All texts are in one batch, or if several can be searched at once, in batches of one shape with at most `ROWS`.
        Much longer contexts are in batches of their own.
        """
        threads = self._num_threads
        number = -(-len(texts) // ROWS) if threads > 1 else 1
        rows = max(1, -(-len(texts) // max(1, number)))
        lengths = [len(context) for context in contexts]
        longest = min(self.window, _padded(max(lengths, default=1)))

        def run(batch: list[int]) -> Callable[[], decoding.Hypotheses]:
            width = min(longest, max(SHORT, _padded(lengths[batch[-1]])))
            shape = few_rows(len(batch), _padded(rows)), width
            return self._batch_search([texts[i] for i in batch], [contexts[i] for i in batch], shape, rounds)

        for i, found in batched(run, lengths, rows, usual=self.window, threads=threads):
            yield texts[i], lengths[i], found

    def _batch_search(
        self, texts: list[_Text], contexts: list[list[int]], shape: tuple[int, int], rounds: int
    ) -> Callable[[], decoding.Hypotheses]:
        """Returns the search for texts with their contexts, in a batch of this number of rows and padded length."""
        prefix = padded(contexts, shape, self.tokenizer.special.pad)
        ends = [len(ids) + text.end - len(text.ids) for text, ids in zip(texts, contexts, strict=True)]
        batch = Sources(
            inputs=None,
            max_lengths=column([min(self.window + 1, end) for end in ends], shape[0], 1),
            min_lengths=column([], shape[0], 0),
            prefix=prefix.ids,
            prefix_lengths=column(map(len, contexts), shape[0], 1),
            numbers=column([(text.prompt, text.draw) for text in texts], shape[0], (0, 0)),
        )
        rules, length = self.decode.rules, self.window + 1
        number = rules.finder.beam_size if isinstance(rules.finder, Beam) else 1  # each draw has a row
        return self._hypotheses(
            rules, batch, number=number, max_length=length, rounds=rounds, is_open=True, ends=self._ends
        )

    @functools.cached_property
    def _limits(self) -> VocabularyLimits:
        """The limits from the settings; special tokens and padding rows of the table are also forbidden."""
        unused = range(self.tokenizer.vocab_size, self.net.config.vocab_size)
        limits, special = limits_of(self.decode, self.tokenizer), self.tokenizer.special.ids - {*self._ends}
        allowed = tuple(sorted({*limits.allowed, *self._ends})) if limits.allowed else ()
        return limits._replace(forbidden=(*sorted(special), *unused), allowed=allowed)

    @functools.cached_property
    def _ends(self) -> tuple[int, ...]:
        """The tokens that end a continuation."""
        ends, size = self.decode.end_tokens or (self.tokenizer.special.eos,), self.tokenizer.vocab_size
        if max(ends) >= size:
            raise ConfigError(f"decode.eos_token_ids must be below {size}, the size of the vocabulary, got {max(ends)}")
        return ends if self.decode.stop_at_end else ()


def _padded(number: int) -> int:
    """Returns the smallest power of two that is at least `number`, so that few programs are compiled."""
    return 1 << (number - 1).bit_length()


@functools.partial(jax.jit, static_argnums=(0, 1))
def _log_probs(
    nets: tuple[Pure[models.LanguageModel, models.LanguageModelConfig], ...],
    average: decoding.Average,
    params: tuple[Params, ...],
    tokens: jax.Array,
) -> jax.Array:
    """Returns the log-probability of each of ``[B, T + 1]`` tokens except the first, given those before it."""
    scores = jnp.stack([net.apply(own, tokens[:, :-1]) for net, own in zip(nets, params, strict=True)])
    log_probs = jax.nn.log_softmax(decoding.mean_log_probs(scores, average))
    return jnp.take_along_axis(log_probs, tokens[:, 1:, None], 2)[..., 0]
