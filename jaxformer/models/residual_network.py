"""A residual convolutional network for images (He et al. 2016), which may attend to its grid."""

from __future__ import annotations

import functools
from collections.abc import Collection

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from jaxformer import functional
from jaxformer.functional.dropout import fold_in_name
from jaxformer.models import choices
from jaxformer.models.token_model import check_names
from jaxformer.models.vision_config import GridConfig, ResidualNetworkConfig
from jaxformer.modules import AttentionFunction, CapturedAttention, Convolution, GridAttention, LayerNorm, Linear
from jaxformer.modules.captured import Intermediates


class ResidualBlock(nnx.Module):
    """``x + conv(relu(norm(conv(relu(norm(x))))))``, He et al. 2016b; a stride or new width projects the skip path.

    Norms are layer norms of each position: unlike batch norms, they keep no running averages and do not mix examples.
    """

    def __init__(self, in_features: int, out_features: int, *, stride: int = 1, rngs: nnx.Rngs):
        self.norm = LayerNorm(in_features)
        self.first = Convolution(in_features, out_features, kernel_size=(3, 3), stride=stride, bias=False, rngs=rngs)
        self.second_norm = LayerNorm(out_features)
        self.second = Convolution(out_features, out_features, kernel_size=(3, 3), bias=False, rngs=rngs)
        changes = stride > 1 or in_features != out_features
        project = functools.partial(Convolution, kernel_size=(1, 1), stride=stride, bias=False, rngs=rngs)
        self.skip = project(in_features, out_features) if changes else None

    def __call__(self, x: Float[Array, "B h w C"]) -> Float[Array, "B u v D"]:
        y = functional.relu(self.norm(x))
        skip = x if self.skip is None else self.skip(y)
        y = self.first(y)
        return skip + self.second(functional.relu(self.second_norm(y)))


class FeatureGrid(nnx.Module):
    """``images -> features`` of a grid: a 3 x 3 convolution, stages of `ResidualBlock`, and a norm.

    `GridAttention` may follow one of the stages.
    """

    def __init__(
        self,
        config: GridConfig,
        *,
        dtype: str = "float32",
        attention: AttentionFunction = functional.attention,
        rngs: nnx.Rngs,
    ):
        widths = config.widths
        self.stem = Convolution(config.num_channels, widths[0], kernel_size=(3, 3), axes=(None, "hidden"), rngs=rngs)
        blocks, before = {}, widths[0]
        for stage, width in enumerate(widths):
            for i in range(config.num_blocks):
                stride = 2 if stage and i == 0 else 1
                blocks[f"{stage + 1}_{i + 1}"] = ResidualBlock(before, width, stride=stride, rngs=rngs)
                before = width
        self.blocks, self.order = nnx.Dict(blocks), tuple(blocks)
        self.attended, layer = "", None
        if config.attention is not None:
            self.attended = f"{config.attention.stage}_{config.num_blocks}"
            layer = GridAttention(
                widths[config.attention.stage - 1],
                config.attention_dim,
                form="gain" if isinstance(config.attention, choices.GainAttention) else "scaled",
                attention=attention,
                rngs=rngs,
            )
        self.attention = layer
        self.norm = LayerNorm(widths[-1])
        self.dtype = jnp.dtype(dtype)

    def features(
        self, images: Float[Array, "B h w C"], *, intermediates: Intermediates | None = None
    ) -> Float[Array, "B u v D"]:
        """Returns the features of each position of the grid, at least 0.

        Args:
          intermediates: receives the arguments of the attention under "self".
        """
        x = self.stem(images.astype(self.dtype))
        for name in self.order:
            x = self.blocks[name](x)
            if self.attention is not None and name == self.attended:
                x = self.attention(x, intermediates=intermediates)
        return functional.relu(self.norm(x))


class ResidualNetwork(FeatureGrid):
    """``images -> logits`` of the classes; use it through ``pure(ResidualNetwork, config)``.

    The mean over all positions of the `FeatureGrid`, and a linear layer.

    Raises:
      ValueError: there are fewer than two classes.
    """

    def __init__(
        self,
        config: ResidualNetworkConfig,
        *,
        attention: AttentionFunction = functional.attention,
        rngs: nnx.Rngs,
    ):
        if config.num_classes < 2:
            raise ValueError(f"num_classes must be at least 2, got {config.num_classes}")
        super().__init__(config, dtype=config.compute_dtype, attention=attention, rngs=rngs)
        self.output = Linear(config.widths[-1], config.num_classes, rngs=rngs)
        self.dropout = config.dropout

    def __call__(self, images: Float[Array, "B h w C"], *, key: jax.Array | None = None) -> Float[Array, "B K"]:
        """Returns logits, float32; `key` is for dropout, None for no dropout."""
        return self.run(images, key=key)[0]

    def captured(
        self, images: Float[Array, "B h w C"], names: Collection[str] = ("grid",)
    ) -> dict[str, CapturedAttention]:
        """Returns the arguments of the attention over the grid, without dropout, under its name, "grid".

        Raises:
          ValueError: there is no attention of this name.
        """
        _, intermediates = self.run(images)
        result = {"grid": intermediates["self"]} if intermediates else {}
        check_names(names, result)
        return {name: result[name] for name in names}

    def run(
        self, images: Float[Array, "B h w C"], *, key: jax.Array | None = None
    ) -> tuple[Float[Array, "B K"], Intermediates]:
        """Returns the logits and, if there is attention over the grid, its `CapturedAttention` under "self"."""
        intermediates: Intermediates = {}
        pooled = self.features(images, intermediates=intermediates).astype(jnp.float32).mean((1, 2))
        return self.output(
            functional.dropout(pooled, rate=self.dropout, key=fold_in_name(key, "pooled"))
        ), intermediates
