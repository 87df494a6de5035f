"""This library's encoder-decoder."""

from __future__ import annotations

import functools

import flax
import jax
import jax.numpy as jnp

from benchmarks.sides.arrays import PAD, batch
from jaxformer import functional, models, training
from jaxformer.functional import CrossEntropy, RDrop, SimCut, Tokens
from jaxformer.functional.dropout import fold_in_name
from jaxformer.models import choices
from jaxformer.modules import pure
from jaxformer.training.config import AdamConfig
from jaxformer.training.optimizers import make_optimizer

LOSSES = {"plain": CrossEntropy(smoothing=0.1), "r_drop": RDrop(5.0, 0.1), "simcut": SimCut(3.0, 0.1)}


def shape(spec):
    """Returns the shape of the encoder-decoder of a size, which has dropout if it is trained."""
    rate = spec.get("dropout", 0.0)
    return models.EncoderDecoderConfig(
        spec["vocab_size"],
        spec["vocab_size"],
        d_model=spec["d_model"],
        num_heads=spec["num_heads"],
        d_ff=spec["d_ff"],
        num_encoder_layers=spec["num_layers"],
        num_decoder_layers=spec["num_layers"],
        dropout=rate,
        attention_dropout=rate,
        feed_forward=choices.Plain(dropout=rate),
    )


def users(query, key, value, *, mask=None, bias=None, scale=None, score=None, sinks=None, dropout=None):
    """Passes a user's call on to the library's attention."""
    options = {"bias": bias, "scale": scale, "score": score, "sinks": sinks, "dropout": dropout}
    return functional.attention(query, key, value, mask=mask, **options)


def network(spec):
    """Returns the network of a size, with a user's attention if `spec` says so."""
    parts = {"attention": users} if spec.get("users") else {}
    return pure(models.EncoderDecoder, shape(spec), **parts)


def build(spec):
    net = network(spec)
    optimizer = make_optimizer(AdamConfig(warmup_steps=4000), steps=100_000)
    state = training.create(net.init, optimizer, jax.random.key(0))
    step = training.make_step(functools.partial(_loss, net, LOSSES[spec.get("loss", "plain")]), optimizer)
    arrays = jax.tree.map(jnp.asarray, batch(spec))
    inputs = {"source": arrays["source"], "target": arrays["target"][:, :-1], "labels": arrays["target"][:, 1:]}

    def once():
        nonlocal state
        state, metrics = step(state, inputs)
        jax.block_until_ready((state, metrics))

    return once


def _loss(net, loss, params, batch, key):
    if loss.passes == 2:
        batch = jax.tree.map(functional.duplicate_rows, batch)
    source = Tokens(batch["source"], batch["source"] != PAD)
    target = Tokens(batch["target"], batch["labels"] != PAD, right_padded=True)
    if isinstance(loss, SimCut):
        source, target = (loss.inputs(side, fold_in_name(key, name)) for side, name in ((source, "s"), (target, "t")))
    return *net.bind(params).loss(source, target, labels=batch["labels"], loss=loss, key=key), {}


def compiled(spec, call, inputs, upstream, *others):
    """Returns a compiled call that gives its output and, if the spec says so, the gradients of the inputs.

    Args:
      others: arrays without a gradient; if the program closed over them, XLA could compute with them beforehand.
    """

    def both(upstream, others, *inputs):
        output, pull = jax.vjp(lambda *inputs: call(*inputs, *others), *inputs)
        return output, *pull(upstream.astype(output.dtype))

    function = both if spec["backward"] else lambda upstream, others, *inputs: (call(*inputs, *others),)
    program = jax.jit(function).lower(upstream, others, *inputs).compile()
    return lambda: jax.block_until_ready(program(upstream, others, *inputs))


def product(size):
    x = jnp.ones((size, size))
    multiply = jax.jit(jnp.matmul)
    return lambda: multiply(x, x).block_until_ready()


def versions():
    return f"jax {jax.__version__}, flax {flax.__version__}"
