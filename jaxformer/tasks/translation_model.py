"""The model of a translation experiment on a mesh: the state and the step that are trained, planned and restored."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxformer import axes, models, sharding, training
from jaxformer.data.batch import Batch, Shape
from jaxformer.data.sources import DataError
from jaxformer.modules.pure import Params, Pure, pure
from jaxformer.sharding import Placement
from jaxformer.tasks.translation_config import TranslationConfig

Net: TypeAlias = Pure[models.EncoderDecoder, models.EncoderDecoderConfig]


@dataclasses.dataclass(frozen=True)
class Model:
    """A network, its optimizer, and where they lie; allocates nothing."""

    config: TranslationConfig
    net: Net
    placement: Placement

    @functools.cached_property
    def optimizer(self) -> optax.GradientTransformation:
        """Adam and its schedule."""
        return training.make_optimizer(self.config.optimizer, steps=self.config.train.steps)

    @functools.cached_property
    def params_shardings(self) -> Params:
        """Where the parameters lie.

        Raises:
          ValueError: the mesh cuts a dimension that it does not divide, with the parameter's name; or it has an axis
            that cuts nothing, along which all devices would do the same.
        """
        found, mesh = self.placement.params(self.net.shapes, self.net.axes), self.placement.mesh
        activations = sharding.spec(("batch", "length"), self.placement.rules, mesh)
        cuts = [cut for spec in (activations, *(x.spec for x in jax.tree.leaves(found))) for cut in spec if cut]
        used = {axis for cut in cuts for axis in ((cut,) if isinstance(cut, str) else cut)}
        for axis, size in mesh.shape.items():
            if size > 1 and axis not in used:
                raise ValueError(f"mesh axis {axis} = {size} cuts nothing of this model")
        return found

    @functools.cached_property
    def shardings(self) -> training.TrainState:
        """Where every leaf of the training state lies."""
        return self.placement.state(self._make, self.params_shardings, self.optimizer)

    def new_state(self) -> training.TrainState:
        """The state before the first step, every leaf born where it belongs."""
        return self._make(shardings=self.shardings)

    def abstract_state(self) -> training.TrainState:
        """Shapes, dtypes and placement of the state: what a restored one must match, and a program is compiled for."""
        place = lambda x, sharding: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)
        return jax.tree.map(place, jax.eval_shape(self._make), self.shardings)

    def step(self) -> training.step.Step:
        """The compiled training step: label-smoothed cross entropy of the next target token."""
        train = self.config.train
        return training.make_step(
            self.placement.under(functools.partial(loss, self.net, train.label_smoothing, train.z_loss)),
            self.optimizer,
            accumulate=train.accumulate,
            nonfinite="skip" if train.nonfinite == "skip" else "abort",
            ema_decay=train.ema_decay,
            shardings=self.shardings,
        )

    def lower(self, shape: Shape) -> tuple[jax.stages.Lowered, Shape]:
        """The training step for batches of a shape, to be compiled for the devices of the mesh, which need not be here.

        Returns the shape, too, with its rows filled up as in training.
        """
        num_rows, source_length, target_length = shape
        num_rows += -num_rows % (self.placement.ways * self.config.train.accumulate)
        place = functools.partial(jax.ShapeDtypeStruct, sharding=self.placement.rows)
        source, target = (num_rows, source_length), (num_rows, target_length)
        tokens = place(target, jnp.int32)
        batch = Batch(place(source, jnp.int32), place(source, jnp.bool_), tokens, tokens, place(target, jnp.bool_))
        with axes.compiling_for(self.placement.mesh.devices.flatten().tolist()):
            return self.step().lower(self.abstract_state(), batch), (num_rows, source_length, target_length)

    def rows(self, num_rows: int) -> np.ndarray:
        """Indices of the rows of a batch that this process reads."""
        return self.placement.rows_here(num_rows, parts=self.config.train.accumulate)

    def _make(self, **options: Any) -> training.TrainState:
        key, ema = jax.random.key(self.config.seed), self.config.train.ema_decay > 0
        return training.create(self.net.init, self.optimizer, key, ema=ema, **options)


def make_model(config: TranslationConfig, vocab_size: int, placement: Placement) -> Model:
    """The model of a configuration, for a vocabulary.

    Raises:
      DataError: a vocabulary size was set, and it is another.
    """
    for name in ("source_vocab_size", "target_vocab_size"):
        wanted = getattr(config.model, name)
        if wanted not in (0, vocab_size):
            raise DataError(f"model.{name} is {wanted}, but the tokenizer has {vocab_size} pieces")
    shape = dataclasses.replace(config.model, source_vocab_size=vocab_size, target_vocab_size=vocab_size)
    network = models.EncoderDecoder
    if placement.mesh.size > 1:
        attention = sharding.sharded_attention(placement.mesh, rules=placement.rules)
        network = functools.partial(network, attention=attention)
    return Model(config, pure(network, shape), placement)


def loss(net: Net, smoothing: float, z_loss: float, params: Params, batch: Batch, key: jax.Array | None):
    """The sum of the loss over the target tokens of a batch, their number, and no other figures."""
    total, count = net.bind(params).cross_entropy(
        batch.source,
        batch.target,
        batch.labels,
        source_valid=batch.source_valid,
        target_valid=batch.target_valid,
        smoothing=smoothing,
        z_loss=z_loss,
        key=key,
    )
    return total, count, {}
