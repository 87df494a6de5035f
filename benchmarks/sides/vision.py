"""This library's training step of a network of images, its convolution, and its batches."""

from __future__ import annotations

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.sides.arrays import image_convolution_arrays, images, save, weights
from benchmarks.sides.ours import compiled
from benchmarks.sides.ours import product as product
from benchmarks.sides.ours import versions as versions
from jaxformer import functional, models, training
from jaxformer.data.image_batches import Augmentation, ImageBatch, PlannedImages, image_plan
from jaxformer.data.pipeline import batches
from jaxformer.modules import pure
from jaxformer.tasks.base import Network
from jaxformer.tasks.vision.task import loss
from jaxformer.training.config import AdamConfig
from jaxformer.training.optimizers import make_optimizer


def build(spec):
    return {"step": training_step, "convolution": convolution, "batches": many_batches}[spec["work"]](spec)


def training_step(spec):
    sizes = {name: spec[name] for name in ("d_model", "num_heads", "d_ff", "num_layers", "patch_size", "num_channels")}
    config = models.VisionTransformerConfig(
        **sizes, image_size=(spec["image_size"],) * 2, num_classes=spec["num_classes"], dropout=spec["dropout"]
    )
    net = pure(models.VisionTransformer, config)
    named = {jax.tree_util.keystr(path, simple=True, separator="/"): leaf.shape for path, leaf in _leaves(net.shapes)}
    values = weights(named)
    params = jax.tree.unflatten(jax.tree.structure(net.shapes), [jnp.asarray(values[name]) for name in named])
    rates = {"schedule": "constant", "warmup_steps": 0, "b2": 0.99, "epsilon": 1e-8, "weight_decay": 0.05}
    optimizer = make_optimizer(AdamConfig(learning_rate=1e-3, clip_norm=1.0, **rates), steps=100_000)
    state = training.create(lambda key: params, optimizer, jax.random.key(0))
    step = training.make_step(Network(net, loss, lambda length: None, (spec["batch"], 1)).sums, optimizer)
    pixels, labels = images(spec)
    batch = ImageBatch(jnp.asarray(pixels), jnp.asarray(labels), jnp.ones(len(labels), bool))

    def once():
        nonlocal state
        state, metrics = step(state, batch)
        return float(metrics["loss_sum"] / metrics["count"])

    save(spec, [np.array([once() for _ in range(3)])])
    return once


def _leaves(tree):
    return jax.tree_util.tree_leaves_with_path(tree)


def convolution(spec):
    *_, taps, stride = spec["shape"]
    *inputs, upstream = map(jnp.asarray, image_convolution_arrays(spec["shape"]))
    call = functools.partial(functional.convolution, stride=stride, padding="valid" if taps == stride else "same")
    once = compiled(spec, call, inputs, upstream)
    save(spec, [np.asarray(a) for a in once()])
    return once


def many_batches(spec):
    """Returns a function that makes some batches, cropped, flipped and shifted, on all cores."""
    pixels, labels = images(spec | {"batch": spec["images"]})
    planned = PlannedImages(
        pixels, labels, image_plan(len(pixels), spec["batch"]), Augmentation(spec["shift"], True, spec["crop"])
    )
    endless = batches(planned.batch)
    return lambda: [None for _ in itertools.islice(endless, spec["number"])]
