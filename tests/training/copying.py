"""A small translator, its training step and its greedy search, for tasks with at most five words of a vocabulary of
eleven tokens. All tests share these shapes, and so the compiled programs."""

import jax
import jax.numpy as jnp
import numpy as np

from jaxformer import decoding, models, pure, training
from jaxformer.data.batch import Batch
from jaxformer.tokenizers.special_tokens import SpecialTokens
from tests.modules.small import quick
from tests.training.small import settings

SPECIAL, ROWS, LENGTH, VOCAB = SpecialTokens(), 16, 5, 11
NET = pure(
    models.EncoderDecoder,
    models.EncoderDecoderConfig(
        *(VOCAB, VOCAB),
        d_model=16,
        num_heads=2,
        d_ff=32,
        num_encoder_layers=1,
        num_decoder_layers=1,
        dropout=0.0,
        norm_position="pre",
    ),
)
OPTIMIZER = training.make_optimizer(training.AdamConfig(learning_rate=1e-2, warmup_steps=20, clip_norm=1.0), steps=300)


def sentences(seed, rows=ROWS):
    """Random words, none of them a special token."""
    return list(np.random.default_rng(seed).integers(4, VOCAB, (rows, LENGTH)).astype(np.int32))


def batch(sources, targets):
    return Batch.from_tokens(sources, targets, (ROWS, LENGTH + 1, LENGTH + 1), SPECIAL)


def loss(params, batch, key):
    del key
    return *NET.bind(params).loss(batch.source, batch.target, labels=batch.labels), {}


STEP = training.make_step(loss, OPTIMIZER)


def train(batches, steps):
    """The parameters after these steps of the training loop."""
    state = training.create(NET.init, OPTIMIZER, jax.random.key(0))
    return training.fit(STEP, state, batches, config=settings(steps)).state.params


@quick
def translate(params, batch):
    """The greedy translation of each row, with its end token."""
    model = NET.bind(params)
    memory = model.encode(batch.source)
    context, state = model.start(memory, beam_size=1, length=LENGTH + 1)
    limits = decoding.Limits(max_length=LENGTH + 1, bos=SPECIAL.bos, eos=SPECIAL.eos, pad=SPECIAL.pad)
    return decoding.greedy(decoding.ContextStep(model.step, context), state, limits).tokens[:, 0]


@quick
def mean_loss(params, batch):
    total, count, _ = loss(params, jax.tree.map(jnp.asarray, batch), None)
    return total / count
