"""A trained language model with its tokenizer: it continues texts, and scores them."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxformer import decoding, models
from jaxformer.data.tokenizer import Tokenizer
from jaxformer.errors import ConfigError, DataError
from jaxformer.modules.pure import Params, Pure
from jaxformer.tasks.language_model.config import DecodeConfig
from jaxformer.tasks.search import Scored, sampling_transforms


@dataclasses.dataclass(frozen=True)
class Continued:
    """A prompt with its continuation, and the log-probability of the tokens that were added."""

    text: str
    log_prob: float


class _Text(NamedTuple):
    """A text that grows."""

    prompt: int
    draw: int
    ids: list[int]
    log_probs: list[float]
    """Those of the tokens that were added."""
    end: int
    """The number of tokens at which it is complete."""


@dataclasses.dataclass(frozen=True)
class TextGenerator:
    """A language model, its parameters and its tokenizer."""

    net: Pure[models.LanguageModel, models.LanguageModelConfig]
    params: Params
    tokenizer: Tokenizer
    decode: DecodeConfig
    window: int
    """The number of tokens that the model was trained to see at once."""
    steps: tuple[int, ...] = ()
    """The training steps whose parameters these are."""

    def generate(self, prompts: Sequence[str], **options: Any) -> list[str]:
        """Returns each prompt with its continuation, at most `decode.max_tokens` tokens long.

        See `continuations` for the arguments and errors.
        """
        return [best[0].text for best in self.continuations(prompts, **options)]

    def continuations(
        self,
        prompts: Sequence[str],
        *,
        n_best: int = 1,
        first: int = 0,
        cut: Callable[[str], None] | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> list[list[Continued]]:
        """Returns `n_best` draws of the continuation of each prompt, the most probable one first.

        A text that fills the window is continued from its last half; earlier tokens are forgotten.

        Args:
          first: the number of the first prompt; draws are a function of it.
          cut: is told of the characters that the vocabulary does not have, which are then left out.
          progress: called with the number of new tokens after each window.

        Raises:
          TypeError: `prompts` is one text and not a sequence of texts.
          ConfigError: `n_best` is below 1, or above 1 although nothing is drawn.
          DataError: a prompt holds characters that the vocabulary does not have, and there is no `cut`.
        """
        if isinstance(prompts, str):  # each of its characters would be a prompt
            raise TypeError("prompts must be a sequence of texts, got one text; write [text]")
        if n_best < 1 or (n_best > 1 and self.decode.temperature == 0):
            raise ConfigError(f"n_best must be at least 1, and 1 with a temperature of 0, got {n_best}")
        ids = [self._encode(prompt, cut) for prompt in prompts]
        texts = [
            _Text(first + i, draw, list(own), [], len(own) + self.decode.max_tokens)
            for i, own in enumerate(ids)
            for draw in range(n_best)
        ]
        rounds = 0
        while growing := [text for text in texts if len(text.ids) < text.end]:
            for text, (new_tokens, log_probs) in zip(growing, self._continue(growing, rounds), strict=True):
                missing = text.end - len(text.ids)
                text.ids.extend(new_tokens[:missing])
                text.log_probs.extend(log_probs[:missing])
                if progress is not None:
                    progress(min(missing, len(new_tokens)))
            rounds += 1
        # An empty prompt was encoded as a line break, which is removed.
        done = [
            Continued(self.tokenizer.decode(text.ids)[0 if prompts[text.prompt - first] else 1 :], sum(text.log_probs))
            for text in texts
        ]
        groups = [done[i : i + n_best] for i in range(0, len(done), n_best)]
        return [sorted(group, key=lambda one: -one.log_prob) for group in groups]

    def score(self, texts: Sequence[str], *, cut: Callable[[str], None] | None = None) -> list[Scored]:
        """Returns the log-probability of every token of each text but the first, which is only read.

        A text that is longer than the window is scored in windows; each begins with the last token of the one before.

        Raises:
          TypeError, DataError: see `continuations`.
        """
        if isinstance(texts, str):
            raise TypeError("texts must be a sequence of texts, got one text; write [text]")
        results = []
        for text in texts:
            ids, log_probs = self._encode(text, cut), []
            for start in range(0, len(ids) - 1, self.window):
                part = ids[start : start + self.window + 1]
                tokens = np.full(self.window + 1, self.tokenizer.special.pad, np.int32)
                tokens[: len(part)] = part
                log_probs += np.asarray(_log_probs(self.net, self.params, tokens))[: len(part) - 1].tolist()
            results.append(Scored(tuple(self.tokenizer.pieces(ids[1:])), tuple(log_probs)))
        return results

    def _encode(self, prompt: str, cut: Callable[[str], None] | None = None) -> list[int]:
        unk = self.tokenizer.special.unk
        ids = self.tokenizer.encode([prompt or "\n"])[0].tolist()
        if unk not in ids:
            return ids
        unknown = sorted({c for c in prompt if unk in self.tokenizer.encode([c])[0]})
        about = f"the model's vocabulary has no {', '.join(map(repr, unknown[:10]))}"
        if cut is None:
            raise DataError(about)
        cut(f"{about}; left out")
        return [token for token in ids if token != unk] or self.tokenizer.encode([" "])[0].tolist()

    def _kept(self, length: int) -> int:
        """Returns the number of last tokens of a text that are read again: all if they fit, else half a window."""
        return length if length < self.window else max(self.window // 2, 1)

    def _continue(self, texts: list[_Text], rounds: int) -> list[tuple[list[int], list[float]]]:
        """Returns new tokens of each text, up to the end of the window, with their log-probabilities."""
        pad = self.tokenizer.special.pad
        contexts = [text.ids[-self._kept(len(text.ids)) :] for text in texts]
        width = min(self.window, 1 << (max(map(len, contexts)) - 1).bit_length())
        prefix = np.full((1 << (len(contexts) - 1).bit_length(), width), pad, np.int32)
        lengths = np.ones(len(prefix), np.int32)
        for row, context in enumerate(contexts):
            prefix[row, : len(context)], lengths[row] = context, len(context)
        key = jax.random.fold_in(jax.random.key(self.decode.seed), rounds)
        number = np.resize([text.prompt for text in texts], len(prefix))
        draws = np.resize([text.draw for text in texts], len(prefix))
        keys = jax.vmap(lambda i, k: _key_of(key, i, k))(jnp.asarray(number), jnp.asarray(draws))
        unused = range(self.tokenizer.vocab_size, self.net.config.vocab_size)
        forbidden = (*sorted(self.tokenizer.special.ids), *unused)
        static = dataclasses.replace(self.decode, seed=0, max_tokens=1)
        options = _Options(static, forbidden, pad, self.window)
        found = jax.device_get(_generate(self.net, options, self.params, self._step_weights, prefix, lengths, keys))
        rows = zip(found.tokens[:, 0], found.token_log_probs[:, 0], lengths, strict=True)
        return [(tokens[n:].tolist(), log_probs[n:].tolist()) for tokens, log_probs, n in rows][: len(contexts)]

    @functools.cached_property
    def _step_weights(self) -> models.StepWeights:
        """The parameters in the order in which the steps of every window read them."""
        return jax.jit(lambda params: self.net.bind(params).step_weights())(self.params)


class _Options(NamedTuple):
    decode: DecodeConfig
    forbidden: tuple[int, ...]
    pad: int
    window: int


def _key_of(key: jax.Array, prompt: jax.Array, draw: jax.Array) -> jax.Array:
    """Returns the key of a draw; that of the first is the prompt's."""
    own = jax.random.fold_in(key, prompt)
    return jax.lax.cond(draw == 0, lambda: own, lambda: jax.random.fold_in(own, draw))


@functools.partial(jax.jit, static_argnums=(0, 1))
def _generate(net, options: _Options, params: Params, weights, prefix, lengths, keys) -> decoding.Hypotheses:
    """Returns tokens ``[B, 1, window + 1]``: the prefixes, continued by what a window of tokens predicts."""
    model, decode = net.bind(params), options.decode
    context, state = model.start(batch_size=len(prefix), beam_size=1, length=options.window, weights=weights)
    read = lambda tokens, state, lengths: model.prefill(tokens, state, context, lengths=lengths)[1]
    search = {
        "max_length": options.window + 1,
        "bos": None,
        "eos": None,
        "pad": options.pad,
        "prefix": decoding.Prefix(prefix, lengths, read),
    }
    transforms = [decoding.forbid(options.forbidden)]
    transforms += [decoding.no_repeat(decode.no_repeat)] if decode.no_repeat else []
    step = lambda tokens, state: model.step(tokens, state, context)
    if decode.temperature == 0:
        return decoding.greedy(step, state, transforms=transforms, **search)
    return decoding.sample(step, state, key=keys, transforms=[*transforms, *sampling_transforms(decode)], **search)


@functools.partial(jax.jit, static_argnums=0)
def _log_probs(net, params: Params, tokens) -> jax.Array:
    """Returns the log-probability of each token ``[T + 1]`` but the first, given those before it."""
    log_probs = jax.nn.log_softmax(net.bind(params)(tokens[None, :-1])[0])
    return jnp.take_along_axis(log_probs, tokens[1:, None], 1)[:, 0]
