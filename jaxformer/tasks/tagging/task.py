"""The token tagging task: its batches, its network with the loss, and its scores."""

from __future__ import annotations

import dataclasses
import functools
import pathlib
from collections.abc import Iterator, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from jaxformer import functional, models
from jaxformer.caches import data_cache
from jaxformer.data.batch import few_rows
from jaxformer.data.batch_plan import num_rows
from jaxformer.data.examples import pad_texts
from jaxformer.data.tagged import PlannedTags, TaggedBatch, TaggedSentences, read_tagged, split_words, tokenize_words
from jaxformer.data.text import Text
from jaxformer.errors import DataError
from jaxformer.evaluation.resampling import Sample
from jaxformer.evaluation.scores import Score, accuracy
from jaxformer.evaluation.spans import is_span, span_scores, spans
from jaxformer.functional.tokens import Tokens
from jaxformer.inspection.pages import View
from jaxformer.modules import AttentionFunction
from jaxformer.modules.pure import Params, Pure, pure
from jaxformer.reprs import as_html, brief_with_methods
from jaxformer.tasks import classes, text, views
from jaxformer.tasks.base import CorpusScores, Data, LossSums, Network, Say, Sums, Task, Trained
from jaxformer.tasks.batched import batched, check_texts, in_order
from jaxformer.tasks.classes import LabeledCorpus
from jaxformer.tasks.classification.predictor import ROWS, ClassVocabulary, row_length
from jaxformer.tasks.classification.task import plan_batches, sized, vocab_size, vocabulary
from jaxformer.tasks.tagging.config import TaggingConfig

Corpus = LabeledCorpus[TaggedSentences]
DeviceBatch = TaggedBatch[jax.Array]


def read(config: TaggingConfig) -> Corpus:
    """Reads the sentences; a part of those for training is held out for validation if no other file is named."""
    return classes.read_tables(config.data, read_tagged, what="sentences")


def prepare(config: TaggingConfig, corpus: Corpus, run: pathlib.Path) -> Data[PlannedTags]:
    """Tokenizes the words and plans batches of sentences."""
    data, most = config.data, config.data.max_length - 2
    lines = Text("\n".join(map(" ".join, corpus.train.sentences)))
    cache = data_cache(data.cache)
    tokenizer = text.make_run_tokenizer(run, lines, cache, kind=data.tokenizer, vocab_size=data.vocab_size)
    classes.save(run, corpus.classes)
    train, others = (tokenize_words(part.sentences, tokenizer, most) for part in (corpus.train, corpus.validation))
    plans = plan_batches(config, train.parts.lengths, others.parts.lengths)
    plan, sizes = plans[0], (len(corpus.train), len(corpus.validation))
    num_split = len(train.parts) + len(others.parts) - sum(sizes)
    in_shapes = ", ".join(f"{rows}x{length}" for rows, length, _ in plan.shapes)
    report = (
        f"{sizes[0]:,} training sentences, {sizes[1]:,} for validation; {num_split:,} further rows for the rest of "
        f"sentences of more than {most} tokens",
        f"{len(corpus.train.words):,} words ({corpus.counts()}), {len(train.parts.tokens):,} tokens, a vocabulary of "
        f"{tokenizer.vocab_size:,}; {plan.steps_per_epoch:,} batches an epoch in shapes {in_shapes}",
        *corpus.warnings(),
    )
    planned, held_out = (
        PlannedTags(each.parts, each.labeled(corpus.indices(part)), tokenizer.special, its)
        for each, part, its in zip((train, others), (corpus.train, corpus.validation), plans, strict=True)
    )
    lengths = [length for _, length, _ in plan.shapes]
    return Data(planned, held_out, ClassVocabulary(tokenizer, corpus.classes), report, lengths)


def network(
    config: TaggingConfig, size: tuple[int, int], attention: AttentionFunction = functional.attention
) -> Network[models.TokenClassifier, DeviceBatch]:
    """Returns a token classifier with the cross entropy of the correct labels."""
    shape = sized(config.model, size)
    row = lambda length: TaggedBatch(text.empty_row(length), np.zeros((1, length), np.int32))
    net, length = pure(models.TokenClassifier, shape, attention=attention), config.data.max_length
    return Network(net, loss, row, (num_rows(config.data.tokens_per_batch, length), length), unit="words")


def loss(model: models.TokenClassifier, batch: DeviceBatch, key: jax.Array | None) -> LossSums:
    """Returns the cross entropy of the labels of words and, with experts, the loss that balances them."""
    logits, balance = model.training_logits(batch.tokens, key=key)
    labels, where = jnp.maximum(batch.labels, 0), batch.labels >= 0
    total, count = functional.cross_entropy(logits, labels, where=where)
    correct = (where & (logits.argmax(-1) == labels)).astype(jnp.float32).sum()
    return total + count * balance, count, {"correct": correct}


@dataclasses.dataclass(frozen=True)
class Tagged:
    """The words of a text, the label of each, and its probability."""

    words: tuple[str, ...]
    labels: tuple[str, ...]
    probabilities: tuple[float, ...]

    @property
    def spans(self) -> list[tuple[str, int, int]]:
        """The kind, the start and the stop of each span of words that labels such as B-PER and I-PER mark."""
        return spans(self.labels) if any(map(is_span, self.labels)) else []


@dataclasses.dataclass(frozen=True)
class Tagger:
    """A token classifier, its parameters, its tokenizer and its labels."""

    net: Pure[models.TokenClassifier, models.TokenClassifierConfig]
    params: Params
    vocabulary: ClassVocabulary
    max_length: int
    steps: tuple[int, ...] = ()
    """The training steps whose parameters these are."""

    __repr__ = brief_with_methods
    _repr_html_ = as_html

    def tag(self, texts: Sequence[str | Sequence[str]]) -> list[Tagged]:
        """Returns the label of each word of each text.

        Args:
          texts: texts, which are split by `data.tagged.split_words`, or sequences of words. The parts of a text that is
            too long for a row are labeled separately.

        Raises:
          TypeError: `texts` is one text and not a sequence of texts.
        """
        check_texts(texts=texts)
        sentences = [split_words(text) if isinstance(text, str) else tuple(text) for text in texts]
        tokenizer, most = self.vocabulary.tokenizer, self.max_length - 2
        tokenized = tokenize_words(sentences, tokenizer, most)
        parts = tokenized.parts
        lengths = (parts.lengths + 2).tolist()

        def run(batch: list[int]):
            length = row_length(lengths[batch[-1]], self.max_length)
            rows = 1 if len(batch) == 1 else few_rows(len(batch), ROWS)
            tokens = pad_texts(parts.take(np.array(batch)), (rows, length), tokenizer.special)
            return lambda: _best(self.net, self.params, tokens)

        found: list[tuple[str, float]] = []
        results = in_order(batched(run, lengths, ROWS, usual=self.max_length))
        for part, (best, shares) in enumerate(results):
            places = tokenized.places(part)
            names = [self.vocabulary.classes[label] for label in best[places]]
            found += zip(names, shares[places].tolist(), strict=True)
        pairs = iter(found)
        tagged = [[(word, *next(pairs)) for word in sentence] for sentence in sentences]
        return [Tagged(*(zip(*each, strict=True) if each else ((), (), ()))) for each in tagged]

    def view(self, text: str) -> View:
        """Returns the self-attention of a text, and the label of each word; of a long text, that of its first part.

        Raises:
          DataError: the text has no words.
        """
        tokenizer, most, words = self.vocabulary.tokenizer, self.max_length - 2, split_words(text)
        if not words:
            raise DataError("the text has no words")
        ids = tokenize_words([words], tokenizer, most).parts.take(np.array([0]))
        length = int(ids.lengths[0]) + 2
        tokens = pad_texts(ids, (1, row_length(length, self.max_length)), tokenizer.special)
        pieces = tuple(tokenizer.pieces(tokens.ids[0, :length].tolist()))
        (tagged,) = self.tag([text])
        labels = " ".join(f"{word}/{label}" for word, label in zip(tagged.words, tagged.labels, strict=True))
        return View(text, views.self_attention(self.net, self.params, tokens, pieces=pieces), {"labels": labels})


@functools.partial(jax.jit, static_argnums=0)
def _best(net: Pure, params: Params, tokens: Tokens[jax.Array]):
    """Returns the most probable class of each token and its probability, ``[B, T]`` each."""
    probabilities = jax.nn.softmax(net.apply(params, tokens))
    return probabilities.argmax(-1).astype(jnp.int32), probabilities.max(-1)


def predictor(config: TaggingConfig, vocabulary: ClassVocabulary, trained: Trained) -> Tagger:
    """Returns the tagger of a run."""
    return Tagger(trained.net, trained.params, vocabulary, config.data.max_length, trained.steps)


def measure(
    config: TaggingConfig, corpus: Corpus, data: Data[PlannedTags], tagger: Tagger, sums: Sums
) -> dict[str, float]:
    """Returns the accuracy of words and the F1 of spans; without labels of spans, each word is one."""
    *_, f1 = scores(corpus.validation, tagger.tag(corpus.validation.sentences), spans=True)
    return {"accuracy": accuracy(float(sums["correct"]), float(sums["count"])).value, "f1": f1.value}


def scores(part: TaggedSentences, tagged: Sequence[Tagged], *, spans: bool) -> list[Score]:
    """Returns the accuracy of words and, with `spans`, precision, recall and F1 of spans."""
    guesses = [each.labels for each in tagged]
    labels = [*part.by_sentence(part.labels)]
    rows = [(num_equal(ours, theirs), len(ours)) for ours, theirs in zip(labels, guesses, strict=True)]
    sample = Sample(lambda: rows, lambda sums: 100 * float(sums[0]) / float(sums[1]))
    correct = sum(right for right, _ in rows)
    found = [dataclasses.replace(accuracy(correct, len(part.labels)), sample=sample)]
    return [*found, *span_scores(labels, guesses)] if spans else found


def num_equal(labels: Sequence[str], guesses: Sequence[str]) -> int:
    """Returns the number of words with the right label."""
    return sum(label == guess for label, guess in zip(labels, guesses, strict=True))


def score(config: TaggingConfig, corpus: Corpus, tagger: Tagger, split: str, say: Say) -> Iterator[CorpusScores]:
    """Labels the words of a split."""
    part = corpus.part(split)
    say(f"{len(part):,} sentences, {len(part.words):,} words")
    tagged = tagger.tag(part.sentences)
    rows = [
        {"words": list(each.words), "labels": list(labels), "guesses": list(each.labels)}
        for each, labels in zip(tagged, part.by_sentence(part.labels), strict=True)
    ]
    yield CorpusScores(split, scores(part, tagged, spans=any(map(is_span, corpus.classes))), rows)


TASK = Task(
    config=TaggingConfig,
    read=read,
    prepare=prepare,
    vocabulary=vocabulary,
    vocab_size=vocab_size,
    network=network,
    predictor=predictor,
    metrics={"accuracy": True, "f1": True},
    measure=measure,
    score=score,
    renamed=classes.renamed,
    commands=("tag", "inspect"),
    vocabulary_files=(*text.FILES, classes.FILE),
)
