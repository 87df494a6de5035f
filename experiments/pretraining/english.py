"""A small BERT of the English sentences at hand: about 2.4 M words of everyday sentences, captions, news and plays."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator

from jaxformer.data.lines import read_lines
from jaxformer.files import write_text
from jaxformer.tasks.masked_language_model import DataConfig, MaskedLanguageModelingConfig
from jaxformer.tasks.masked_language_model.config import SMALL
from jaxformer.training.config import AdamConfig, LinearDecay, TrainConfig

COLUMNS = {
    "multi30k/train.en": 0,
    "tatoeba/eng-fra.tsv": 0,
    "tatoeba/eng-deu.tsv": 0,
    "tinyshakespeare/input.txt": 0,
    "agnews/train_10k.tsv": 0,
    "cola/in_domain_train.tsv": 3,
}
"""The column of the text in each file; news and acceptability judgments lose their labels. WMT is evaluation only."""
LABELED = ("sst2/train.txt", "trec/train.txt")
"""Files whose lines begin with a label and a space, which is removed."""


def small() -> MaskedLanguageModelingConfig:
    """A masked language model of English sentences: 4 layers, D = 256; see `python -m experiments.pretraining`."""
    return MaskedLanguageModelingConfig(
        name="english",
        model=SMALL,
        data=DataConfig(text="english.txt", held_out=0.02, vocab_size=8000, length=128, batch_size=32),
        optimizer=AdamConfig(
            learning_rate=1e-3, schedule=LinearDecay(), warmup_steps=300, epsilon=1e-6, weight_decay=0.01, clip_norm=1.0
        ),
        train=TrainConfig(steps=5000, validate_every=500, checkpoint_every=500, keep_last=1),
    )


def sentences(directory: pathlib.Path) -> Iterator[str]:
    """Yields each distinct sentence of the corpora once.

    Raises:
      DataError: a file is missing.
    """
    seen = set()
    for name, column in COLUMNS.items():
        for line in read_lines(directory / name):
            text = line.split("\t")[column].strip()
            if text and text not in seen:
                seen.add(text)
                yield text
    for name in LABELED:
        for line in read_lines(directory / name):
            text = line.partition(" ")[2].strip()
            if text and text not in seen:
                seen.add(text)
                yield text


def write_corpus(directory: pathlib.Path, path: pathlib.Path) -> int:
    """Writes the sentences of all corpora, one a line, and returns the number of words."""
    lines = list(sentences(directory))
    write_text(path, "".join(f"{line}\n" for line in lines))
    return sum(len(line.split()) for line in lines)
