"""Runs of every task with a vocabulary, with random parameters, that need no training."""

import dataclasses
import functools

from jaxformer import demo, models, sharding, training
from jaxformer.models import choices
from jaxformer.sharding import Placement
from jaxformer.tasks import (
    captioning,
    classes,
    classification,
    language_model,
    masked_language_model,
    registry,
    rundir,
    tagging,
)
from jaxformer.tasks.training_setup import make_training_setup
from jaxformer.tasks.translation import DataConfig, DecodeConfig, Greedy, TranslationConfig
from jaxformer.tokenizers.subwords import SubwordTokenizer
from tests.modules.small import drawn
from tests.tasks.captioning.small import RECURRENT

SIZES = {"d_model": 12, "num_heads": 2, "d_ff": 12}
ENCODER = SIZES | {"num_layers": 1, "positions": choices.Learned(), "max_positions": 32}
PAIR = SIZES | {"num_encoder_layers": 1, "num_decoder_layers": 1}
VOCAB = {"vocab_size": 400}
DECODE = DecodeConfig(search=Greedy(), max_length=6)
LINES = [pair.english for pair in demo.generate(500)]

CONFIGS = {
    "translation": TranslationConfig(
        model=models.EncoderDecoderConfig(**PAIR, tie_embeddings="none", output_bias=True),
        data=DataConfig(corpus="grammar", **VOCAB),
        decode=DECODE,
    ),
    "recurrent": TranslationConfig(
        model=models.Seq2SeqConfig(d_model=12, d_hidden=12, num_encoder_layers=1, num_decoder_layers=1),
        data=DataConfig(corpus="grammar", **VOCAB),
        decode=DECODE,
    ),
    "language_model": language_model.LanguageModelingConfig(
        model=models.LanguageModelConfig(
            0, **ENCODER, norm_position="pre", activation="gelu_tanh", attention_bias=True, embedding_scale=1.0
        ),
        data=language_model.DataConfig(**VOCAB, tokenizer="unigram", length=16),
        decode=language_model.DecodeConfig(search=language_model.Greedy(), max_tokens=6),
    ),
    "masked_language_model": masked_language_model.MaskedLanguageModelingConfig(
        model=models.EncoderConfig(**ENCODER), data=masked_language_model.DataConfig(**VOCAB, length=32)
    ),
    "classification": classification.ClassificationConfig(
        model=models.ClassifierConfig(**ENCODER), data=classification.DataConfig(**VOCAB, max_length=32)
    ),
    "tagging": tagging.TaggingConfig(
        model=models.TokenClassifierConfig(**ENCODER), data=tagging.DataConfig(**VOCAB, max_length=32)
    ),
    "captioning": captioning.CaptioningConfig(
        model=RECURRENT,
        data=captioning.DataConfig(**VOCAB),
        decode=captioning.DecodeConfig(search=captioning.Greedy(), max_length=6),
    ),
}
"""The configurations by the task, or the kind of model."""


@functools.cache
def tokenizer():
    return SubwordTokenizer.train(LINES, **VOCAB)


def write(path, kind, **changes):
    """Writes a run into a new folder; returns the folder."""
    config = dataclasses.replace(CONFIGS[kind], **changes)
    task = registry.task_of(config)
    path.mkdir()
    tokenizer().save(path / "tokenizer.model")
    if classes.FILE in task.vocabulary_files:
        classes.save(path, ("a", "b", "c"))
    vocabulary = task.vocabulary(path)
    net = make_training_setup(task, config, vocabulary.vocab_size, Placement(sharding.mesh(""))).network.net
    with training.Checkpoints(path / rundir.PRETRAINED, keep_last=1) as saved:
        saved.save(0, drawn(net.shapes), {})
    rundir.write_provenance(path, tokenizer=vocabulary.fingerprint)
    rundir.write_config(path, config.task, config)
    return path
