"""The language modeling task: its batches, its network with the loss, generation, and its scores."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Iterator, Sequence

import jax
import jax.numpy as jnp

from jaxformer import functional, models
from jaxformer.caches import data_cache
from jaxformer.data.text import Text, split_text
from jaxformer.data.tokenizer import Tokenizer
from jaxformer.data.windows import OrderedWindows, RandomWindows, TextBatch, TokenStream, prepare_text
from jaxformer.errors import ConfigError, DataError
from jaxformer.evaluation.scores import Score, bits_per_character, nats_per_token, perplexity
from jaxformer.functional.tokens import Tokens
from jaxformer.modules import AttentionFunction
from jaxformer.modules.pure import Params, Pure, pure
from jaxformer.tasks.base import LossSums, Network, OnExamples, PlannedData, Say, Trained, sum_losses
from jaxformer.tasks.language_model.config import LanguageModelingConfig
from jaxformer.tasks.language_model.generator import TextGenerator
from jaxformer.tasks.text import TextCorpus, TextTask
from jaxformer.tasks.tokenizers import VOCAB_MULTIPLE, make_run_tokenizer
from jaxformer.training.progress import Count

DeviceBatch = TextBatch[jax.Array]


@dataclasses.dataclass(frozen=True)
class TextData(PlannedData[Tokenizer]):
    """Windows of the tokenized texts."""

    corpus: TextCorpus
    vocabulary: Tokenizer
    train: RandomWindows
    validation: OrderedWindows

    @property
    def report(self) -> Sequence[str]:
        train, validation = (_counted(windows.stream) for windows in (self.train, self.validation))
        return (
            f"training text: {self.corpus.train.report()}, {train}; validation: {validation}",
            f"a vocabulary of {self.vocabulary.vocab_size:,} tokens; batches of {self.train.batch_size} windows of "
            f"{self.train.length} tokens; {self.train.steps_per_epoch:,} of them are as long as the text",
        )

    @property
    def lengths(self) -> Sequence[int]:
        return (self.train.length,)


@dataclasses.dataclass(frozen=True)
class LanguageModelNetwork(Network[DeviceBatch]):
    """A decoder-only Transformer with the cross entropy of the next token."""

    net: Pure[models.LanguageModel, models.LanguageModelConfig]
    largest_batch: tuple[int, int]

    def loss(self, params: Params, batch: DeviceBatch, key: jax.Array | None):
        return *self.bound(params, batch).loss(batch.tokens, labels=batch.labels, key=key), {}

    def abstract_batch(self, shape: tuple[int, ...], rows: jax.sharding.Sharding) -> TextBatch[jax.ShapeDtypeStruct]:
        tokens = jax.ShapeDtypeStruct(shape, jnp.int32, sharding=rows)
        valid = jax.ShapeDtypeStruct(shape, jnp.bool_, sharding=rows)
        return TextBatch(Tokens(tokens, valid, right_padded=True), tokens)


class LanguageModeling(TextTask[LanguageModelingConfig, DeviceBatch, TextGenerator]):
    """Prediction of the next token of a text."""

    name = "language_model"
    commands = ("generate", "score")
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
        # Padded with unused tokens, so that a mesh can shard the table.
        shape = dataclasses.replace(config.model, vocab_size=vocab_size + -vocab_size % VOCAB_MULTIPLE)
        net = pure(models.LanguageModel, shape, attention=attention)
        return LanguageModelNetwork(net, (config.data.batch_size, config.data.length))

    def predictor(self, config: LanguageModelingConfig, vocabulary: Tokenizer, trained: Trained) -> TextGenerator:
        return TextGenerator(trained.net, trained.params, vocabulary, config.decode, config.data.length, trained.steps)

    def evaluate(
        self,
        config: LanguageModelingConfig,
        corpus: TextCorpus,
        predictor: TextGenerator,
        *,
        split: str,
        say: Say,
        on_examples: OnExamples,
    ) -> dict[str, list[Score]]:
        del on_examples  # a text has no examples, only tokens
        if predictor.others:
            raise ConfigError("a held-out text is scored by one language model; `jaxformer score` takes an ensemble")
        if split != "validation":
            raise DataError(f"a language model has no {split} data: use --split validation")
        stream = prepare_text(corpus.validation, predictor.tokenizer, data_cache(config.data.cache))
        windows = OrderedWindows(stream, config.data.length, config.data.batch_size)
        loss = jax.jit(LanguageModelNetwork(predictor.net, (0, 0)).validation_loss)
        device_batches = (jax.tree.map(jnp.asarray, windows.batch(i)) for i in range(windows.steps_per_epoch))
        progress = Count(windows.steps_per_epoch, "batches of text", say)

        def results() -> Iterator[LossSums]:
            for batch in device_batches:
                yield loss(predictor.params, batch)
                progress(1)

        sums = sum_losses(results())
        total, count = float(sums["loss"]), float(sums["count"])
        unknown = stream.num_unknown
        lost = f"; {unknown:,} tokens are unknown, and are scored as such" if unknown else ""
        say(f"held-out text: {int(count):,} tokens, {len(corpus.validation):,} characters{lost}")
        scores = [nats_per_token(total, count), perplexity(total, count)]
        return {"held-out text": [*scores, bits_per_character(total, len(corpus.validation))]}


def _counted(stream: TokenStream) -> str:
    """Returns the number of tokens of a text and the number of unknown ones, which other tokenizers may produce."""
    unknown = stream.num_unknown
    return f"{stream.num_labels:,} tokens" + (f", {unknown:,} of them unknown" if unknown else "")


TASK = LanguageModeling()
