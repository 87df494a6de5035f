"""The masked language modeling task: packed lines, the network with its loss, and its scores."""

from __future__ import annotations

import dataclasses
import functools
import pathlib
from collections.abc import Iterator, Mapping

import jax
import jax.numpy as jnp
import numpy as np

from jaxformer import functional, models
from jaxformer.caches import data_cache
from jaxformer.data.packing import PackedBatch, PackedTexts, tokenize_lines
from jaxformer.data.sources import num_held_out, split_rows
from jaxformer.data.text import Text
from jaxformer.errors import DataError
from jaxformer.evaluation.resampling import Sample
from jaxformer.evaluation.scores import Score, accuracy, nats_per_token, perplexity
from jaxformer.functional.dropout import fold_in_name
from jaxformer.functional.tokens import Tokens
from jaxformer.inspection.pages import View
from jaxformer.modules import AttentionFunction
from jaxformer.modules.pure import Params, Pure, pure
from jaxformer.reprs import as_html, brief_with_methods
from jaxformer.tasks import text, views
from jaxformer.tasks.base import CorpusScores, Data, LossSums, Network, Say, Sums, Task, Trained
from jaxformer.tasks.batched import one_behind, padded
from jaxformer.tasks.masked_language_model.config import MaskedLanguageModelingConfig
from jaxformer.tasks.mixtures import with_samples
from jaxformer.tasks.text import TextCorpus, make_run_tokenizer, planned_vocab_size, run_tokenizer
from jaxformer.tokenizers.base import Tokenizer
from jaxformer.tokenizers.characters import CharacterTokenizer
from jaxformer.tokenizers.pretrained import PretrainedTokenizer
from jaxformer.tokenizers.special_tokens import SpecialTokens

LENGTH_STEP = 16
"""Texts to fill are padded to multiples of this length, so that few programs are compiled."""

Model = models.MaskedLanguageModel
DeviceBatch = PackedBatch[jax.Array]


def read(config: MaskedLanguageModelingConfig) -> TextCorpus:
    """Reads the texts; lines of the training text are held out if no other is named."""

    def split(whole: Text) -> Iterator[Text]:
        lines = _lines(whole)
        # Every seed holds out the same lines, so that runs are comparable.
        parts = split_rows(lines, num_held_out(config.data.held_out, len(lines)))
        return (Text("\n".join(lines[i] for i in part)) for part in parts)

    return text.read(config.data, split)


def _lines(whole: Text) -> tuple[str, ...]:
    return tuple(line for line in whole.characters.split("\n") if line.strip())


def prepare(config: MaskedLanguageModelingConfig, corpus: TextCorpus, run: pathlib.Path) -> Data[PackedTexts]:
    """Tokenizes the lines and packs them into rows."""
    data, cache = config.data, data_cache(config.data.cache)
    tokenizer = make_run_tokenizer(run, corpus.train, cache, kind=data.tokenizer, vocab_size=data.vocab_size)
    train = _packed(config, corpus.train, tokenizer, shuffle=True)
    validation = _packed(config, corpus.validation, tokenizer, shuffle=False)
    report = (
        f"training text: {len(train.texts):,} lines, {len(train.texts.tokens):,} tokens; "
        f"validation: {len(validation.texts):,} lines, {len(validation.texts.tokens):,} tokens",
        f"a vocabulary of {tokenizer.vocab_size:,} tokens; {train.num_rows:,} rows of {train.length} tokens, "
        f"{train.fill:.0%} full, {train.num_cut:,} lines cut; {train.steps_per_epoch:,} batches an epoch",
    )
    return Data(train, validation, tokenizer, report, [train.length])


def _packed(config: MaskedLanguageModelingConfig, text: Text, tokenizer: Tokenizer, *, shuffle: bool) -> PackedTexts:
    data = config.data
    texts = tokenize_lines(_lines(text), tokenizer, data_cache(data.cache))
    seed = config.seed if shuffle else 0  # of the rows, and so of the masked tokens: runs of all seeds are comparable
    packed = PackedTexts(texts, tokenizer.special, data.length, data.batch_size, seed, shuffle)
    special = sorted(tokenizer.special.ids)
    if all(np.isin(texts[i], special).all() for i in range(len(texts))):  # none can be hidden, so there is no loss
        part = "training" if shuffle else "validation"
        raise DataError(
            f"the {part} text has no token that the tokenizer knows, only {len(texts.tokens):,} unknown ones"
        )
    return packed


@dataclasses.dataclass(frozen=True)
class Masking:
    """The choice of the tokens to predict, a new one for each key."""

    num_tokens: int
    """The size of the tokenizer's vocabulary; this number is the mask token's id."""
    rate: float

    def __call__(
        self, batch: DeviceBatch, key: jax.Array | None
    ) -> tuple[Tokens[jax.Array], jax.Array, jax.Array, jax.Array]:
        """Returns masked tokens ``[B, T]``, and the positions ``[B, P]`` to predict, their labels and a padding mask.

        Without a key, as in validation, the same tokens of a batch are always masked.
        """
        mask_key = fold_in_name(key, "mask")
        if mask_key is None:
            mask_key = jax.random.key(0)
        tokens = batch.tokens
        seen, chosen = functional.mask_tokens(
            tokens.ids,
            mask_key,
            mask=self.num_tokens,
            vocab_size=self.num_tokens,
            special=sorted(batch.special.ids),
            where=tokens.valid,
            rate=self.rate,
        )
        most = functional.num_masked(tokens.shape[1], self.rate)
        masked_positions = jnp.argsort(~chosen, axis=1, stable=True)[:, :most].astype(jnp.int32)
        labels, where = (jnp.take_along_axis(x, masked_positions, 1) for x in (tokens.ids, chosen))
        return dataclasses.replace(tokens, ids=seen), masked_positions, labels, where

    def loss(self, model: Model, batch: DeviceBatch, key: jax.Array | None) -> LossSums:
        """Returns the cross entropy of the masked tokens."""
        seen, masked_positions, labels, where = self(batch, key)
        return *model.loss(seen, masked_positions, labels=labels, where=where, key=key), {}

    def validation_loss(self, model: Model, batch: DeviceBatch) -> LossSums:
        """Returns the cross entropy, and the number of masked tokens that are guessed."""
        seen, masked_positions, labels, where = self(batch, None)
        logits = model(seen, masked_positions)
        total, count = functional.cross_entropy(logits, labels, where=where)
        return total, count, {"correct": (where & (logits.argmax(-1) == labels)).astype(jnp.float32).sum()}


def network(
    config: MaskedLanguageModelingConfig, vocab_size: int, attention: AttentionFunction = functional.attention
) -> Network[Model, DeviceBatch]:
    """Returns an encoder with the cross entropy of masked tokens."""
    text.check_vocab_size("vocab_size", config.model.vocab_size, vocab_size)
    net = pure(Model, dataclasses.replace(config.model, vocab_size=text.table_size(vocab_size)), attention=attention)

    def row(length: int) -> PackedBatch[np.ndarray]:
        empty = text.empty_row(length)
        return PackedBatch(dataclasses.replace(empty, positions=empty.ids, segments=empty.ids), SpecialTokens())

    masking = Masking(vocab_size, config.data.mask_rate)
    largest = config.data.batch_size, config.data.length
    return Network(net, masking.loss, row, largest, masking.validation_loss)


@dataclasses.dataclass(frozen=True)
class MaskedPredictor:
    """A masked language model, its parameters and its tokenizer."""

    net: Pure[models.MaskedLanguageModel, models.EncoderConfig]
    params: Params
    tokenizer: Tokenizer
    steps: tuple[int, ...] = ()
    """The training steps whose parameters these are."""

    __repr__ = brief_with_methods
    _repr_html_ = as_html

    def fill(self, text: str, *, top_k: int = 5) -> list[list[tuple[str, float]]]:
        """Returns the `top_k` most probable tokens, with their probabilities, at each ``[MASK]`` of a text.

        With subwords, a ``[MASK]`` after a space stands for the first token of a word, which includes the space.

        Raises:
          DataError: the text has no ``[MASK]``, or more tokens than the model has positions.
          ValueError: `top_k` is below 1.
        """
        if top_k < 1:
            raise ValueError(f"top_k must be at least 1, got {top_k}")
        ids = self._encode(text)
        found = [place for place, token in enumerate(ids) if token == self.tokenizer.vocab_size]
        if not found:
            raise DataError(f"the text has no [MASK]: {text!r}")
        tokens, masked = self._tokens(ids), padded([found], (1, _padded(len(found))), 0).ids
        logits = _logits(self.net, self.params, tokens, masked)
        probabilities = np.array(jax.nn.softmax(logits[0, : len(found), : self.tokenizer.vocab_size]))
        best = np.argsort(-probabilities)[:, :top_k]
        return [
            [(self.tokenizer.pieces([token])[0], float(row[token])) for token in tokens]
            for row, tokens in zip(probabilities, best, strict=True)
        ]

    def view(self, text: str) -> View:
        """Returns the self-attention of a text, with or without ``[MASK]``, and what is predicted at each token.

        Raises:
          DataError: the text has more tokens than the model has positions.
        """
        ids, mask = self._encode(text), self.tokenizer.vocab_size
        tokens = self._tokens(ids)
        pieces = tuple("[MASK]" if token == mask else self.tokenizer.pieces([token])[0] for token in ids)
        known = {"tokenizer": self.tokenizer, "number": len(ids), "renormalize": True}
        guesses = views.predictions(self.net, self.params, tokens, **known)
        best = [f"{row[0][0]} {row[0][1]:.1%}" for token, row in zip(ids, guesses, strict=True) if token == mask]
        found = views.self_attention(self.net, self.params, tokens, pieces=pieces, guesses=guesses)
        return View(text, found, {"at each [MASK]": ", ".join(best)} if best else {})

    def _encode(self, text: str) -> list[int]:
        return [self.tokenizer.special.bos, *self._masked(text), self.tokenizer.special.eos]

    def _tokens(self, ids: list[int]) -> Tokens[np.ndarray]:
        """Returns a padded row of tokens."""
        length, limit = _padded(len(ids)), self.net.config.length_limit
        if limit is not None and len(ids) > limit:
            raise DataError(f"the text has {len(ids)} tokens, but the model has {limit} positions")
        return padded([ids], (1, min(length, limit or length)), 0)

    def _masked(self, text: str) -> list[int]:
        """Returns the tokens of a text with ``[MASK]``; the id of the mask token is the first after the vocabulary."""
        tokenizer, mask = self.tokenizer, self.tokenizer.vocab_size
        if isinstance(tokenizer, PretrainedTokenizer) and (name := tokenizer.mask):  # it has rules for the spaces there
            (ids,) = tokenizer.encode([text.replace("[MASK]", name)])
            return np.where(ids == tokenizer.id_of(name), mask, ids).tolist()
        parts = text.split("[MASK]")
        if not isinstance(tokenizer, CharacterTokenizer):  # the space before a word is part of its first token
            parts[:-1] = [part.rstrip() for part in parts[:-1]]
        first, *others = (part.tolist() for part in tokenizer.encode(parts))
        return first + [token for part in others for token in (mask, *part)]


def _padded(length: int) -> int:
    return -(-length // LENGTH_STEP) * LENGTH_STEP


@functools.partial(jax.jit, static_argnums=0)
def _logits(net: Pure[Model, models.EncoderConfig], params: Params, tokens: Tokens[jax.Array], masked: jax.Array):
    return net.apply(params, tokens, masked)


def predictor(config: MaskedLanguageModelingConfig, vocabulary: Tokenizer, trained: Trained) -> MaskedPredictor:
    """Returns the predictor of a run."""
    return MaskedPredictor(trained.net, trained.params, vocabulary, trained.steps)


def measure(
    config: MaskedLanguageModelingConfig,
    corpus: TextCorpus,
    data: Data[PackedTexts],
    masked: MaskedPredictor,
    sums: Sums,
) -> Mapping[str, float]:
    """Returns perplexity and accuracy of the masked tokens."""
    _, perplexity_score, accuracy_score = _scores(sums)
    return {"perplexity": perplexity_score.value, "accuracy": accuracy_score.value}


def _scores(sums: Sums) -> list[Score]:
    """Returns nats per masked token, perplexity and accuracy."""
    total, count, correct = (float(sums[name]) for name in ("loss", "count", "correct"))
    return [nats_per_token(total, count), perplexity(total, count), accuracy(correct, count)]


def score(
    config: MaskedLanguageModelingConfig, corpus: TextCorpus, masked: MaskedPredictor, split: str, say: Say
) -> Iterator[CorpusScores]:
    """Scores the held-out lines by nats per masked token, perplexity and accuracy."""
    if split != "validation":
        raise DataError(f"a masked language model has no {split} data: use --split validation")
    packed = _packed(config, corpus.validation, masked.tokenizer, shuffle=False)
    say(f"held-out text: {len(packed.texts):,} lines, {len(packed.texts.tokens):,} tokens")
    whole = dataclasses.replace(network(config, masked.tokenizer.vocab_size), net=masked.net)
    loss_of = jax.jit(whole.validation_sums)
    found = one_behind(loss_of(masked.params, packed.batch(step)) for step in range(packed.steps_per_epoch))
    batches = [(float(total), float(count), float(others["correct"])) for total, count, others in found]
    rows = np.array(batches)
    *nats, right = _scores(dict(zip(("loss", "count", "correct"), rows.sum(0), strict=True)))
    sample = Sample(lambda: rows, lambda sums: 100 * float(sums[2]) / float(sums[1]))
    yield CorpusScores("held-out text", [*with_samples(rows, *nats), dataclasses.replace(right, sample=sample)])


TASK = Task(
    config=MaskedLanguageModelingConfig,
    read=read,
    prepare=prepare,
    vocabulary=run_tokenizer,
    vocab_size=planned_vocab_size,
    network=network,
    predictor=predictor,
    metrics={"perplexity": False, "accuracy": True},
    measure=measure,
    score=score,
    default_split="validation",
    commands=("fill", "inspect"),
)
