"""The cells of the experiment in order of importance, and the configuration of each."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Mapping
from typing import Any

import jaxformer
from jaxformer import pure
from jaxformer.models import EncoderDecoder, Seq2Seq, choices
from jaxformer.models.config import CellName, EncoderDecoderConfig, Seq2SeqConfig
from jaxformer.tasks.translation import TranslationConfig

ATTENTIONS = {"fixed": None, "additive": choices.Additive(), "multiplicative": choices.General()}
KINDS = (*ATTENTIONS, "transformer")
TARGETS = {"multi30k": "de", "grammar": "fr", "tatoeba": "fr", "tatoeba fr-en": "en"}


@dataclasses.dataclass(frozen=True)
class Scale:
    """The sizes of models and corpora, and the budgets, which are equal for all models."""

    steps: Mapping[str, int]
    """The updates on each corpus; a corpus that is not named is left out."""
    transformer: Mapping[str, Any]
    """The settings of the Transformer, whose number of parameters the others get."""
    kinds: tuple[str, ...] = KINDS
    vocab_size: Mapping[str, int] = dataclasses.field(
        default_factory=lambda: {"multi30k": 4000, "grammar": 2000, "tatoeba": 4000, "tatoeba fr-en": 4000}
    )
    cells: tuple[CellName, ...] = ("gru", "rnn")
    """The cells, besides the LSTM, that the network with a fixed context has on the grammar."""
    tokens_per_batch: int = 2048
    num_shapes: int = 3
    max_length: int = 128
    rates: tuple[float, ...] = (3e-3, 1e-2)
    """The learning rates: each model is trained in full with each, and the lowest validation loss chooses."""
    validations: int = 5
    train_pairs: int = 36_000
    """Training pairs of the grammar."""
    test_pairs: int = 300
    samples: int = 1000
    """Bootstrap samples."""
    gradient_seeds: int = 5
    distances: int = 97
    """Steps of the sequences in which gradients are measured."""


FULL = Scale(
    steps={"multi30k": 1000, "grammar": 800, "tatoeba": 600, "tatoeba fr-en": 600},
    transformer={"d_model": 128, "num_heads": 4, "d_ff": 256, "num_encoder_layers": 2, "num_decoder_layers": 2},
)
SMALL = Scale(
    steps={"grammar": 800},
    transformer={"d_model": 64, "num_heads": 4, "d_ff": 128, "num_encoder_layers": 2, "num_decoder_layers": 2},
    vocab_size={"grammar": 1000},
    tokens_per_batch=1024,
    num_shapes=2,
    rates=(5e-3,),
    validations=4,
    train_pairs=12_000,
    test_pairs=200,
)
SMOKE = Scale(
    steps={"grammar": 4},
    transformer={"d_model": 16, "num_heads": 2, "d_ff": 32, "num_encoder_layers": 1, "num_decoder_layers": 1},
    kinds=("fixed", "additive"),
    cells=(),
    vocab_size={"grammar": 400},
    tokens_per_batch=1024,
    num_shapes=1,
    rates=(3e-3,),
    validations=1,
    train_pairs=300,
    test_pairs=10,
    samples=20,
    gradient_seeds=2,
    distances=9,
)


@dataclasses.dataclass(frozen=True)
class Cell:
    """One training: a model on a corpus."""

    corpus: str
    kind: str
    recurrent: CellName = "lstm"
    seed: int = 0
    rate: float = 3e-3

    @property
    def name(self) -> str:
        """The name of its run directory and of its record."""
        words = [self.corpus, self.kind, *([self.recurrent] if self.recurrent != "lstm" else [])]
        return " ".join([*words, f"rate {self.rate:g}", f"seed {self.seed}"]).replace(" ", "-")


def cells(scale: Scale, *, seeds: int) -> list[Cell]:
    """Returns the trainings, the most important ones first; further seeds come last."""
    found = []
    for seed in range(seeds):
        for corpus in scale.steps:
            kinds = ("additive", "transformer") if corpus == "tatoeba fr-en" else scale.kinds
            found += [Cell(corpus, kind, seed=seed) for kind in kinds if kind in scale.kinds]
        found += [Cell("grammar", "fixed", cell, seed) for cell in scale.cells]
    return [dataclasses.replace(cell, rate=rate) for cell in found for rate in scale.rates]


def model(cell: Cell, scale: Scale, num_tokens: int) -> EncoderDecoderConfig | Seq2SeqConfig:
    """Returns the Transformer, or a recurrent network with the dimension of the state that gives it the same size."""
    shared = {"source_vocab_size": num_tokens, "target_vocab_size": num_tokens, "dropout": 0.1}
    transformer = EncoderDecoderConfig(**scale.transformer, **shared, norm_position="pre")
    if cell.kind == "transformer":
        return transformer
    size = pure(EncoderDecoder, transformer).num_parameters
    shared |= {"cell": cell.recurrent, "attention": ATTENTIONS[cell.kind], "d_model": transformer.d_model}
    make = lambda d_hidden: Seq2SeqConfig(**shared, **{"d_hidden": d_hidden})
    size_of = lambda config: pure(Seq2Seq, config).num_parameters
    low, high = 1, 1  # in halves of the state, because each direction of the encoder has one
    while size_of(make(2 * high)) < size:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if size_of(make(2 * middle)) < size else (low, middle)
    return min((make(2 * low), make(2 * high)), key=lambda config: abs(size_of(config) - size))


def configuration(cell: Cell, scale: Scale, *, data: Mapping[str, Any]) -> TranslationConfig:
    """Returns the configuration of a training on these data."""
    steps = scale.steps[cell.corpus]
    every = max(1, steps // scale.validations)
    num_tokens = scale.vocab_size[cell.corpus]
    config = jaxformer.configure(
        "translation",
        name=cell.name.replace("-", " "),
        seed=cell.seed,
        data={
            "vocab_size": num_tokens,
            "tokens_per_batch": scale.tokens_per_batch,
            "num_shapes": scale.num_shapes,
            "max_length": scale.max_length,
            "target_language": TARGETS[cell.corpus],
            **data,
        },
        optimizer={
            "learning_rate": cell.rate,
            "schedule": "cosine",
            "warmup_steps": max(1, steps // 10),
            "clip_norm": 1.0,
        },
        train={
            "steps": steps,
            "validate_every": every,
            "checkpoint_every": every,
            "keep_last": 1,
            "patience": 0,
            "tensorboard": False,
        },
        decode={"validation_sentences": 0, "search": {"beam_size": 1}, "max_ratio": 1.5},
    )
    assert isinstance(config, TranslationConfig)
    return dataclasses.replace(config, model=model(cell, scale, num_tokens))


def data_of(corpus: str, *, directory: pathlib.Path | None, files: pathlib.Path) -> dict[str, Any]:
    """Returns the data settings of a corpus; `files` has a folder for each that has joined pairs."""
    if corpus in ("multi30k", "grammar"):
        parts = {"": "train", "validation_": "validation", "test_": "test"}
        sides = ("source", "target")
        return {f"{p}{side}": str(files / corpus / f"{name}.{side}") for p, name in parts.items() for side in sides}
    reverse = corpus == "tatoeba fr-en"
    return {
        "source": "tatoeba/eng-fra.tsv",
        "columns": (1, 0) if reverse else (0, 1),
        "source_language": "fr" if reverse else "en",
        "directory": str(directory),
        "held_out": 1000,
    }
