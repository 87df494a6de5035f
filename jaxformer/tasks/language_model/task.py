"""The language modeling task: its batches, its network with the loss, generation, and its scores."""

from __future__ import annotations

import dataclasses
import functools
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxformer import decoding, functional, models
from jaxformer.caches import data_cache
from jaxformer.data.batch import Rows
from jaxformer.data.pipeline import batches
from jaxformer.data.text import Text, split_text
from jaxformer.data.tokenizer import Tokenizer
from jaxformer.data.windows import OrderedWindows, RandomWindows, TextBatch, prepare_text
from jaxformer.errors import DataError
from jaxformer.evaluation.scores import Score, bits_per_character, nats_per_token, perplexity
from jaxformer.models import costs
from jaxformer.modules import AttentionFunction
from jaxformer.modules.pure import Params, Pure, pure
from jaxformer.sharding import Placement
from jaxformer.tasks.base import Data, Keep, Network, Say
from jaxformer.tasks.language_model.config import DecodeConfig, LanguageModelingConfig
from jaxformer.tasks.text import TextCorpus, TextTask
from jaxformer.tasks.tokenizers import VOCAB_MULTIPLE, make_run_tokenizer
from jaxformer.training.progress import Count

DeviceBatch = TextBatch[jax.Array]


@dataclasses.dataclass(frozen=True)
class TextData(Data[Tokenizer]):
    """Windows of the tokenized texts."""

    corpus: TextCorpus
    vocabulary: Tokenizer
    train: RandomWindows
    validation: OrderedWindows

    @property
    def report(self) -> Sequence[str]:
        return (
            f"training text: {self.corpus.train.report()}, {self.train.stream.num_labels:,} tokens; "
            f"validation: {self.validation.stream.num_labels:,} tokens",
            f"{self.vocabulary.vocab_size:,} kinds of token; batches of {self.train.batch_size} windows of "
            f"{self.train.length} tokens, {self.train.steps_per_epoch:,} as many as the text",
        )

    @property
    def lengths(self) -> Sequence[int]:
        return (self.train.length,)

    def batches(self, start: int, rows: Rows) -> Iterator[TextBatch[np.ndarray]]:
        return batches(functools.partial(self.train.batch, rows=rows), start=start)

    def validation_batches(self, rows: Rows) -> Iterator[TextBatch[np.ndarray]]:
        return batches(functools.partial(self.validation.batch, rows=rows), stop=self.validation.steps_per_epoch)


@dataclasses.dataclass(frozen=True)
class LanguageModelNetwork(Network[DeviceBatch]):
    """A decoder-only Transformer with the cross entropy of the next token."""

    net: Pure[models.LanguageModel, models.LanguageModelConfig]
    largest_batch: tuple[int, int]

    def loss(self, params: Params, batch: DeviceBatch, key: jax.Array | None):
        model = self.net.bind(params)
        return *model.cross_entropy(batch.tokens, batch.labels, valid=batch.valid, key=key), {}

    def abstract_batch(self, shape: tuple[int, ...], rows: jax.sharding.Sharding) -> TextBatch[jax.ShapeDtypeStruct]:
        tokens = jax.ShapeDtypeStruct(shape, jnp.int32, sharding=rows)
        return TextBatch(tokens, tokens, jax.ShapeDtypeStruct(shape, jnp.bool_, sharding=rows))

    def training_flops(self, shape: tuple[int, ...]) -> float:
        num_rows, length = shape
        return costs.language_model_training_flops(self.net.config, num_rows, length)

    def computed_flops(self, shape: tuple[int, ...]) -> float:
        num_rows, length = shape
        return costs.language_model_computed_flops(self.net.config, num_rows, length)

    def shape(self, batch: DeviceBatch) -> tuple[int, ...]:
        return batch.tokens.shape

    def describe(self, shape: tuple[int, ...]) -> str:
        return "{} x {} tokens".format(*shape)


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

    def generate(self, prompts: Sequence[str]) -> list[str]:
        """Returns each prompt with its continuation, at most `decode.max_tokens` tokens long.

        A text that fills the window is continued from its last half; earlier tokens are forgotten.

        Raises:
          TypeError: `prompts` is one text and not a sequence of texts.
          DataError: a prompt holds characters that the vocabulary does not have.
        """
        if isinstance(prompts, str):  # each of its characters would be a prompt
            raise TypeError("prompts must be a sequence of texts, got one text; write [text]")
        ids = [self._encode(prompt) for prompt in prompts]
        ends = [len(prompt_ids) + self.decode.max_tokens for prompt_ids in ids]
        rounds = 0
        while growing := [i for i, end in enumerate(ends) if len(ids[i]) < end]:
            contexts = [ids[i][-self._kept(len(ids[i])) :] for i in growing]
            for i, new_tokens in zip(growing, self._continue(contexts, growing, rounds), strict=True):
                ids[i] = [*ids[i], *new_tokens][: ends[i]]
            rounds += 1
        # An empty prompt was encoded as a line break, which is removed.
        return [self.tokenizer.decode(text)[0 if prompt else 1 :] for prompt, text in zip(prompts, ids, strict=True)]

    def _encode(self, prompt: str) -> list[int]:
        ids = self.tokenizer.encode([prompt or "\n"])[0].tolist()
        if self.tokenizer.special.unk in ids:
            unknown = sorted({c for c in prompt if self.tokenizer.special.unk in self.tokenizer.encode([c])[0]})
            raise DataError(f"the model's vocabulary has no {', '.join(map(repr, unknown))}")
        return ids

    def _kept(self, length: int) -> int:
        """Returns the number of last tokens of a text that are read again: all if they fit, else half a window."""
        return length if length < self.window else max(self.window // 2, 1)

    def _continue(self, contexts: list[list[int]], indices: list[int], rounds: int) -> list[list[int]]:
        """Returns new tokens of each context, up to the end of the window."""
        pad = self.tokenizer.special.pad
        prefix = np.full((1 << (len(contexts) - 1).bit_length(), self.window), pad, np.int32)
        lengths = np.ones(len(prefix), np.int32)
        for row, context in enumerate(contexts):
            prefix[row, : len(context)], lengths[row] = context, len(context)
        key = jax.random.fold_in(jax.random.key(self.decode.seed), rounds)
        keys = jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.asarray(np.resize(indices, len(prefix))))
        unused = range(self.tokenizer.vocab_size, self.net.config.vocab_size)
        forbidden = (*sorted(self.tokenizer.special.ids), *unused)
        tokens = _generate(self.net, self.decode.temperature, forbidden, pad, self.params, prefix, lengths, keys)
        return [row[length:].tolist() for row, length in zip(np.asarray(tokens), lengths, strict=True)][: len(contexts)]


@functools.partial(jax.jit, static_argnums=(0, 1, 2, 3))
def _generate(net, temperature: float, forbidden: tuple[int, ...], pad: int, params: Params, prefix, lengths, keys):
    """Returns tokens ``[B, window + 1]``: the prefixes, continued by what a window of tokens predicts."""
    batch, window = prefix.shape
    model = net.bind(params)
    context, state = model.start(batch_size=batch, beam_size=1, length=window)
    read = lambda tokens, state, lengths: model.prefill(tokens, state, context, lengths=lengths)[1]
    search = {
        "max_length": window + 1,
        "bos": None,
        "eos": None,
        "pad": pad,
        "prefix": decoding.Prefix(prefix, lengths, read),
    }
    transforms = [decoding.forbid(forbidden)]
    step = lambda tokens, state: model.step(tokens, state, context)
    if temperature == 0:
        result = decoding.greedy(step, state, transforms=transforms, **search)
    else:
        transforms.append(decoding.temperature(temperature))
        result = decoding.sample(step, state, key=keys, transforms=transforms, **search)
    return result.tokens[:, 0]


class LanguageModeling(TextTask[LanguageModelingConfig, DeviceBatch, TextGenerator]):
    """Prediction of the next token of a text."""

    name = "language_model"
    commands = ("generate",)
    config = LanguageModelingConfig

    def split(self, config: LanguageModelingConfig, text: Text) -> TextCorpus:
        return TextCorpus(*split_text(text, held_out=config.data.held_out))

    def prepare(self, config: LanguageModelingConfig, corpus: TextCorpus, run: pathlib.Path) -> TextData:
        data, cache = config.data, data_cache(config.data.cache)
        tokenizer = make_run_tokenizer(run, corpus.train, cache, kind=data.tokenizer, vocab_size=data.vocab_size)
        train, validation = (prepare_text(text, tokenizer, cache) for text in (corpus.train, corpus.validation))
        return TextData(
            corpus,
            tokenizer,
            RandomWindows(train, data.length, data.batch_size, config.seed),
            OrderedWindows(validation, data.length, data.batch_size),
        )

    def network(
        self, config: LanguageModelingConfig, vocab_size: int, attention: AttentionFunction = functional.attention
    ) -> LanguageModelNetwork:
        if config.model.vocab_size not in (0, vocab_size):
            raise DataError(f"model.vocab_size is {config.model.vocab_size}, but the tokenizer has {vocab_size}")
        # Padded with tokens that never occur, so that a mesh can divide the table.
        shape = dataclasses.replace(config.model, vocab_size=vocab_size + -vocab_size % VOCAB_MULTIPLE)
        net = pure(functools.partial(models.LanguageModel, attention=attention), shape)
        return LanguageModelNetwork(net, (config.data.batch_size, config.data.length))

    def predictor(
        self,
        config: LanguageModelingConfig,
        vocabulary: Tokenizer,
        net: Pure[Any, Any],
        params: Params,
        placement: Placement,
        steps: tuple[int, ...],
    ) -> TextGenerator:
        return TextGenerator(net, params, vocabulary, config.decode, config.data.length, steps)

    def evaluate(
        self,
        config: LanguageModelingConfig,
        corpus: TextCorpus,
        predictor: TextGenerator,
        *,
        split: str,
        say: Say,
        keep: Keep,
    ) -> dict[str, list[Score]]:
        del keep  # a text has no examples, only tokens
        if split != "validation":
            raise DataError(f"a language model has no {split} data: use --split validation")
        stream = prepare_text(corpus.validation, predictor.tokenizer, data_cache(config.data.cache))
        windows = OrderedWindows(stream, config.data.length, config.data.batch_size)
        loss = jax.jit(LanguageModelNetwork(predictor.net, (0, 0)).validation_loss)
        device_batches = (jax.tree.map(jnp.asarray, windows.batch(i)) for i in range(windows.steps_per_epoch))
        count_batches, sums = Count(windows.steps_per_epoch, "batches of text", say), []
        for batch in device_batches:
            sums.append(jax.device_get(loss(predictor.params, batch)))
            count_batches(1)
        total, count = (float(sum(column)) for column in zip(*sums, strict=True))
        say(f"held-out text: {int(count):,} tokens, {len(corpus.validation):,} characters")
        scores = [nats_per_token(total, count), perplexity(total, count)]
        return {"held-out text": [*scores, bits_per_character(total, len(corpus.validation))]}


TASK = LanguageModeling()
