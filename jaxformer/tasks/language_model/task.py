"""The language modeling task: its batches, its network with the loss, generation, and its scores."""

from __future__ import annotations

import dataclasses
import functools
import pathlib
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxformer import functional, models
from jaxformer.caches import data_cache
from jaxformer.data.mixture import MixedWindows, keyed
from jaxformer.data.text import Texts, split_text
from jaxformer.data.weights import make_phases
from jaxformer.data.windows import OrderedWindows, RandomWindows, TextBatch, TokenStream, prepare_text
from jaxformer.digests import short_digest
from jaxformer.errors import ConfigError, DataError
from jaxformer.evaluation.scores import bits_per_character, nats_per_token, perplexity
from jaxformer.modules import AttentionFunction
from jaxformer.modules.pure import pure
from jaxformer.tasks import text
from jaxformer.tasks.base import CorpusScores, Data, InTurn, LossSums, Network, Say, Task, Trained
from jaxformer.tasks.batched import one_behind
from jaxformer.tasks.language_model.config import LanguageModelingConfig
from jaxformer.tasks.language_model.generator import TextGenerator
from jaxformer.tasks.mixtures import check_different, mean_scores, tokens_by_corpus, with_samples
from jaxformer.tasks.text import (
    VOCAB_MULTIPLE,
    TextCorpus,
    check_vocab_size,
    make_run_tokenizer,
    planned_vocab_size,
    run_tokenizer,
)
from jaxformer.tokenizers.base import Tokenizer
from jaxformer.training.progress import Count

DeviceBatch = TextBatch[jax.Array]
TextNetwork = Network[models.LanguageModel, DeviceBatch]


@dataclasses.dataclass(frozen=True)
class TextMixture:
    """Several texts by name."""

    parts: dict[str, TextCorpus]

    @property
    def fingerprints(self) -> dict[str, str]:
        """Hashes of the training and the validation data of all texts."""
        found = [(name, part.fingerprints) for name, part in self.parts.items()]
        return {key: short_digest(f"{name} {each[key]}\n" for name, each in found) for key in ("train", "validation")}


def only(config: LanguageModelingConfig, name: str) -> LanguageModelingConfig:
    """Returns the configuration of one of several texts alone."""
    part = config.data.corpora[name]
    data = dataclasses.replace(config.data, corpora={}, temperature=1.0, text=part.text, validation=part.validation)
    return dataclasses.replace(config, data=data)


def read(config: LanguageModelingConfig) -> TextCorpus | TextMixture:
    """Reads the texts; the end of each training text is held out if no other is named."""
    data = config.data
    split = functools.partial(split_text, held_out=data.held_out)
    if not data.corpora:
        return text.read(data, split)
    parts = {name: text.read(only(config, name).data, split) for name in data.corpora}
    check_different({name: part.train.fingerprint for name, part in parts.items()})
    return TextMixture(parts)


def prepare(config: LanguageModelingConfig, corpus: TextCorpus | TextMixture, run: pathlib.Path) -> Data[Any]:
    """Tokenizes the texts and cuts them into windows."""
    if isinstance(corpus, TextMixture):
        return prepare_mixture(config, corpus, run)
    data, cache = config.data, data_cache(config.data.cache)
    tokenizer = make_run_tokenizer(run, corpus.train, cache, kind=data.tokenizer, vocab_size=data.vocab_size)
    stream, held_out = (prepare_text(part, tokenizer, cache) for part in (corpus.train, corpus.validation))
    train = RandomWindows(stream, data.length, data.batch_size, config.seed)
    report = (
        f"training text: {corpus.train.report()}, {counted(stream)}; validation: {counted(held_out)}",
        f"a vocabulary of {tokenizer.vocab_size:,} tokens; batches of {data.batch_size} windows of {data.length} "
        f"tokens; {train.steps_per_epoch:,} of them are as long as the text",
    )
    return Data(train, OrderedWindows(held_out, data.length, data.batch_size), tokenizer, report, [data.length])


def prepare_mixture(
    config: LanguageModelingConfig, corpus: TextMixture, run: pathlib.Path
) -> Data[MixedWindows | OrderedWindows]:
    """Tokenizes several texts with one vocabulary, and cuts each into windows."""
    data, cache = config.data, data_cache(config.data.cache)
    whole = Texts(tuple(part.train for part in corpus.parts.values()))
    tokenizer = make_run_tokenizer(run, whole, cache, kind=data.tokenizer, vocab_size=data.vocab_size)
    windows, held_out, report = list[RandomWindows](), dict[str, OrderedWindows](), list[str]()
    for number, (name, part) in enumerate(corpus.parts.items()):
        stream, rest = (prepare_text(one, tokenizer, cache) for one in (part.train, part.validation))
        seed = int(keyed(config.seed, number)[0])
        try:
            windows.append(RandomWindows(stream, data.length, data.batch_size, seed))
            held_out[name] = OrderedWindows(rest, data.length, data.batch_size)
        except DataError as error:
            raise DataError(f"data.corpora.{name}: {error}") from error
        report.append(f"{name}: {part.train.report()}, {counted(stream)}; validation: {counted(rest)}")
    sizes = [one.stream.num_labels for one in windows]
    phases = make_phases(data.corpora, sizes=sizes, temperature=data.temperature)
    train = MixedWindows(tuple(windows), phases, config.seed)
    shares = ", ".join(f"{name} {share:.1%}" for name, share in zip(corpus.parts, phases.shares[0], strict=True))
    report.append(
        f"a vocabulary of {tokenizer.vocab_size:,} tokens; batches of {data.batch_size} windows of {data.length} "
        f"tokens, at first {shares}; {train.steps_per_epoch:,} of them are as long as the texts"
    )
    return Data(train, InTurn(held_out), tokenizer, report, [data.length])


def counted(stream: TokenStream) -> str:
    """Returns the number of tokens of a text and the number of unknown ones, which other tokenizers may produce."""
    unknown = stream.num_unknown
    return f"{stream.num_labels:,} tokens" + (f", {unknown:,} of them unknown" if unknown else "")


def network(
    config: LanguageModelingConfig, vocab_size: int, attention: AttentionFunction = functional.attention
) -> TextNetwork:
    """Returns a decoder-only Transformer with the cross entropy of the next token."""
    check_vocab_size("vocab_size", config.model.vocab_size, vocab_size)
    # Padded with unused tokens, so that a mesh can shard the table.
    shape = dataclasses.replace(config.model, vocab_size=vocab_size + -vocab_size % VOCAB_MULTIPLE)
    net = pure(models.LanguageModel, shape, attention=attention)
    names, largest = tuple(config.data.corpora), (config.data.batch_size, config.data.length)
    if not names:
        return Network(net, loss, TextBatch.row, largest)

    def training(model: models.LanguageModel, batch: DeviceBatch, key: jax.Array | None) -> LossSums:
        return *loss(model, batch, key)[:2], tokens_by_corpus(batch.tokens, batch.corpora, names)

    row = lambda length: dataclasses.replace(TextBatch.row(length), corpora=np.zeros(1, np.int32))
    return Network(net, training, row, largest)


def loss(model: models.LanguageModel, batch: DeviceBatch, key: jax.Array | None) -> LossSums:
    """Returns the cross entropy of the next token."""
    return *model.loss(batch.tokens, labels=batch.labels, key=key), {}


def predictor(config: LanguageModelingConfig, vocabulary: Tokenizer, trained: Trained) -> TextGenerator:
    """Returns the text generator of a run."""
    return TextGenerator(
        trained.net, trained.params, vocabulary, config.decode, steps=trained.steps, window=config.data.length
    )


def score(
    config: LanguageModelingConfig, corpus: TextCorpus | TextMixture, generator: TextGenerator, split: str, say: Say
) -> Iterator[CorpusScores]:
    """Scores the held-out text by nats per token, perplexity and bits per character; several texts one by one."""
    if isinstance(corpus, TextMixture):
        found: list[CorpusScores] = []
        for name, part in corpus.parts.items():
            for scored in score(only(config, name), part, generator, split, say):
                found.append(dataclasses.replace(scored, corpus=name))
                yield found[-1]
        yield mean_scores(found)
        return
    if generator.others:
        raise ConfigError("a held-out text is scored by one language model; `jaxformer score` takes an ensemble")
    if split != "validation":
        raise DataError(f"a language model has no {split} data: use --split validation")
    stream = prepare_text(corpus.validation, generator.tokenizer, data_cache(config.data.cache))
    windows = OrderedWindows(stream, config.data.length, config.data.batch_size)
    losses = _losses(generator, windows, Count(windows.steps_per_epoch, "batches of text", say))
    total, count = losses.sum(0).tolist()
    unknown = stream.num_unknown
    lost = f"; {unknown:,} tokens are unknown, and are scored as such" if unknown else ""
    say(f"held-out text: {int(count):,} tokens, {len(corpus.validation):,} characters{lost}")
    scores = with_samples(losses, nats_per_token(total, count), perplexity(total, count))
    examples = (
        None
        if _has_experts(generator)
        else [
            {"text": text, "tokens": int(number), "nats_per_token": round(loss / number, 4)}
            for text, (loss, number) in zip(_texts(generator, windows), losses.tolist(), strict=True)
        ]
    )
    yield CorpusScores("held-out text", [*scores, bits_per_character(total, len(corpus.validation))], examples)


def _losses(generator: TextGenerator, windows: OrderedWindows, progress: Count) -> np.ndarray:
    """Returns the sum of ``-log p`` of each window and its number of tokens, ``float64 [windows, 2]``.

    Those of a batch in place of a window with experts, for whose room the tokens of a batch compete.
    """
    whole = Network(generator.net, loss, TextBatch.row, (0, 0))
    sums = lambda params, batch: whole.validation_sums(params, batch)[:2]
    of_rows = jax.jit(sums if _has_experts(generator) else functools.partial(functional.per_example_losses, sums))

    def results() -> Iterator[tuple[jax.Array, jax.Array]]:
        for i in range(windows.steps_per_epoch):
            yield of_rows(generator.params, jax.tree.map(jnp.asarray, windows.batch(i)))
            progress(1)

    found = [np.stack(jax.device_get(pair), -1).reshape(-1, 2) for pair in one_behind(results())]
    rows = np.concatenate(found).astype(np.float64)
    return rows[rows[:, 1] > 0]  # the last batch is filled up with empty rows


def _has_experts(generator: TextGenerator) -> bool:
    return isinstance(generator.net.config.feed_forward, models.choices.Experts)


def _texts(generator: TextGenerator, windows: OrderedWindows) -> list[str]:
    tokens, length = windows.stream.tokens[1:], windows.length
    return [generator.tokenizer.decode(tokens[i : i + length].tolist()) for i in range(0, len(tokens), length)]


TASK = Task(
    config=LanguageModelingConfig,
    read=read,
    prepare=prepare,
    vocabulary=run_tokenizer,
    vocab_size=planned_vocab_size,
    network=network,
    predictor=predictor,
    score=score,
    default_split="validation",
    commands=("generate", "inspect", "score"),
)
