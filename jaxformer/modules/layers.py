"""The plain layers and their initial values: linear maps, norms, feed-forward networks, and mixtures of experts.

The random bits of initial values are a hash of (key, index), as for dropout, and not from ``jax.random``: on a CPU, a
threefry draw for a stack of layers takes 0.6 s to compile, and a model has a dozen of them (the hash shortened the
compilation of an initialization from 8.6 s to 1.0 s). Bits that depend on an absolute index are also the same under
every sharding of the parameters.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Literal, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float

from jaxformer import functional
from jaxformer.axes import Axes, AxisName, constrain
from jaxformer.functional.dropout import every_index, hashed_bits
from jaxformer.functional.feed_forward import Activation
from jaxformer.modules.captured import Intermediates


@functools.partial(jax.jit, static_argnames="shape")
def uniform(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Returns values uniform in (-1, 1): 23 random bits plus one half, so that they are symmetric and never -1 or 1."""
    bits = hashed_bits(key, every_index(shape)) >> 9
    return (bits.astype(jnp.float32) + 0.5) * 2**-22 - 1


def xavier_uniform(key: jax.Array, shape: tuple[int, ...], *, fan_in: int, fan_out: int) -> jax.Array:
    """Returns values uniform in ``+-sqrt(6 / (fan_in + fan_out))`` (Glorot and Bengio 2010).

    The fans are arguments because some kernels stack several matrices.
    """
    return uniform(key, shape) * (6 / (fan_in + fan_out)) ** 0.5


def normal(key: jax.Array, shape: tuple[int, ...], *, deviation: float) -> jax.Array:
    """Returns normal values with mean 0, drawn by inverting the cumulative distribution function."""
    return jax.lax.erf_inv(uniform(key, shape)) * (2**0.5 * deviation)


class Gains(NamedTuple):
    """Factors of the initial kernels of a block, relative to `xavier_uniform` of each of its matrices.

    `scaled_gains` returns the default of the models.
    """

    query_key: float = 1.0
    value: float = 1.0
    output: float = 1.0  # the output projection of attention
    up: float = 1.0
    down: float = 1.0


UNIT_GAINS = Gains()

FAIRSEQ_GAINS = Gains(query_key=0.5**0.5, value=0.5**0.5)
"""The gains of fairseq's attention: the bound of one ``[D, 3D]`` matrix for queries, keys and values (Ott et al.
2019)."""


def scaled_gains(num_layers: int, *, after_residual: bool) -> Gains:
    """Returns the default gains: 0.5 for queries, keys and values and, under post-norm, outputs scaled by depth.

    With Xavier's bound for each ``[D, D]`` matrix, attention starts too large; `FAIRSEQ_GAINS` are 0.71. Under
    post-norm (`after_residual`), the outputs of sublayers are also divided by ``sqrt(2 num_layers)`` (Radford et al.
    2019), because every norm divides the skip path by the deviation of the sum, so large sublayer outputs drown it out.

    The validation loss of Multi30k en-de (4 + 4 layers, D = 128) after 500 updates is 3.41 nats per token instead of
    4.15 with gains of 1 under post-norm, and 3.54 instead of 3.65 under pre-norm: see experiments/initialization.
    """
    depth = (2 * num_layers) ** -0.5 if after_residual else 1.0
    return Gains(query_key=0.5, value=0.5, output=depth, down=depth)


def zeros_param(shape: int | tuple[int, ...], axes: Axes, *, exists: bool) -> nnx.Param | None:
    """Returns a parameter that starts from 0, such as a bias; None for a layer without it."""
    return nnx.Param(jnp.zeros(shape, jnp.float32), axes=axes) if exists else None


def value_of(param: nnx.Param | None) -> Array | None:
    """Returns the array of a parameter that a layer may lack."""
    return None if param is None else param[...]


class Linear(nnx.Module):
    """``x kernel + bias``."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        bias: bool = True,
        gain: float = 1.0,
        axes: Axes = (None, None),
        rngs: nnx.Rngs,
    ):
        kernel = xavier_uniform(rngs.params(), (in_features, out_features), fan_in=in_features, fan_out=out_features)
        self.kernel = nnx.Param(kernel * gain, axes=axes)
        self.bias = zeros_param(out_features, axes[1:], exists=bias)

    def __call__(self, x: Float[Array, "*batch D"]) -> Float[Array, "*batch F"]:
        return functional.linear(x, self.kernel[...], value_of(self.bias))


Norm: TypeAlias = Callable[[Array], Array]


class LayerNorm(nnx.Module):
    """`functional.layer_norm` with a learned scale (initially 1) and bias (initially 0)."""

    def __init__(self, d_model: int, *, epsilon: float = 1e-5, form: Literal["variance", "deviation"] = "variance"):
        self.scale = nnx.Param(jnp.ones(d_model, jnp.float32), axes=("model",))
        self.bias = nnx.Param(jnp.zeros(d_model, jnp.float32), axes=("model",))
        self.epsilon = epsilon
        self.form: Literal["variance", "deviation"] = form

    def __call__(self, x: Float[Array, "*batch D"]) -> Float[Array, "*batch D"]:
        return functional.layer_norm(x, self.scale[...], self.bias[...], epsilon=self.epsilon, form=self.form)


class RMSNorm(nnx.Module):
    """`functional.rms_norm` with a learned scale (initially 1)."""

    def __init__(self, dim: int, *, epsilon: float = 1e-6, axis: AxisName = "model"):
        self.scale = nnx.Param(jnp.ones(dim, jnp.float32), axes=(axis,))
        self.epsilon = epsilon

    def __call__(self, x: Float[Array, "*batch D"]) -> Float[Array, "*batch D"]:
        return functional.rms_norm(x, self.scale[...], epsilon=self.epsilon)


def normalized(x: Array, norm: Norm | None) -> Array:
    """Returns the norm of `x`, or `x` itself where there is no norm."""
    return x if norm is None else norm(x)


class NormPair(nnx.Module):
    """The norms before and after a sublayer, as `functional.sandwich_norm` takes them."""

    def __init__(self, make: Callable[[], Norm]):
        self.before, self.after = make(), make()

    def __iter__(self) -> Iterator[Norm]:
        return iter((self.before, self.after))


class FeedForward(nnx.Module):
    """Two linear layers with biases and an activation in between, F = 4D by default: see `functional.feed_forward`."""

    def __init__(
        self,
        d_model: int,
        d_ff: int | None = None,
        *,
        activation: Activation = functional.relu,
        bias: bool = True,
        dropout: float = 0.0,
        gains: Gains = UNIT_GAINS,
        rngs: nnx.Rngs,
    ):
        if d_ff is None:
            d_ff = 4 * d_model
        self.up = Linear(d_model, d_ff, bias=bias, gain=gains.up, axes=("model", "hidden"), rngs=rngs)
        self.down = Linear(d_ff, d_model, bias=bias, gain=gains.down, axes=("hidden", "model"), rngs=rngs)
        self.activation = activation
        self.dropout = dropout

    def __call__(self, x: Float[Array, "B T D"], *, key: jax.Array | None = None) -> Float[Array, "B T D"]:
        hidden = constrain(self._hidden(x), "batch", "length", "hidden")
        return self.down(functional.dropout(hidden, rate=self.dropout, key=key))

    def _hidden(self, x: Array) -> Array:
        return self.activation(self.up(x))


class GatedFeedForward(FeedForward):
    """`functional.gated_feed_forward`: SwiGLU by default, GEGLU with `functional.gelu`.

    F = 8D/3 by default, with as many parameters as two linear layers with F = 4D (Shazeer 2020).
    """

    def __init__(
        self,
        d_model: int,
        d_ff: int | None = None,
        *,
        activation: Activation = functional.silu,
        bias: bool = False,
        dropout: float = 0.0,
        gains: Gains = UNIT_GAINS,
        rngs: nnx.Rngs,
    ):
        if d_ff is None:
            d_ff = 8 * d_model // 3
        self.gate = Linear(d_model, d_ff, bias=bias, gain=gains.up, axes=("model", "hidden"), rngs=rngs)
        super().__init__(d_model, d_ff, activation=activation, bias=bias, dropout=dropout, gains=gains, rngs=rngs)

    def _hidden(self, x: Array) -> Array:
        return self.activation(self.gate(x)) * self.up(x)


class MixtureOfExperts(nnx.Module):
    """A feed-forward layer that sends each token to a few of `num_experts` networks; F = 4D by default.

    It replaces `FeedForward`. With a capacity, each row of a batch is a group with its own capacity, and the kernels
    and the tokens gathered for each expert have the logical axis "experts", so that a mesh can shard them. Without a
    capacity, all tokens are sorted together, which suits a single device. Given `intermediates`, the layer records its
    `Routing` there under "experts", for `functional.load_balancing_loss`.
    """

    def __init__(
        self,
        d_model: int,
        num_experts: int,
        d_ff: int | None = None,
        *,
        num_experts_per_token: int = 2,
        capacity_factor: float | None = None,
        activation: Activation = functional.relu,
        gated: bool = False,
        gains: Gains = UNIT_GAINS,
        rngs: nnx.Rngs,
    ):
        """Initializes the parameters.

        Args:
          capacity_factor: the capacity of an expert in training (when there is a key), relative to an even share of the
            tokens; None for no limit, in which case XLA may compute every expert for every token on a GPU.
        """
        if d_ff is None:
            d_ff = 4 * d_model
        shapes = {"up": (num_experts, d_model, d_ff), "down": (num_experts, d_ff, d_model)}
        kernels = {name: xavier_uniform(rngs.params(), s, fan_in=s[1], fan_out=s[2]) for name, s in shapes.items()}
        self.router = nnx.Param(
            xavier_uniform(rngs.params(), (d_model, num_experts), fan_in=d_model, fan_out=num_experts),
            axes=("model", None),
        )
        self.up = nnx.Param(kernels["up"] * gains.up, axes=("experts", "model", "hidden"))
        self.down = nnx.Param(kernels["down"] * gains.down, axes=("experts", "hidden", "model"))
        gate = None
        if gated:
            kernel = xavier_uniform(rngs.params(), shapes["up"], fan_in=d_model, fan_out=d_ff)
            gate = nnx.Param(kernel * gains.up, axes=("experts", "model", "hidden"))
        self.gate = gate
        self.num_experts_per_token, self.capacity_factor = num_experts_per_token, capacity_factor
        self.activation = activation

    def __call__(
        self,
        x: Float[Array, "B T D"],
        *,
        valid: Bool[Array, "B T"] | None = None,
        key: jax.Array | None = None,
        intermediates: Intermediates | None = None,
    ) -> Float[Array, "B T D"]:
        """Returns the mixture of the experts' outputs. Without `valid`, padding takes capacity like any other token."""
        with jax.default_matmul_precision("highest"):  # otherwise, float32 operands may be rounded to bfloat16 or TF32
            logits = functional.linear(x.astype("float32"), self.router[...], None)
        chosen = self.num_experts_per_token
        routing = functional.route(logits, chosen, normalize=chosen > 1, valid=valid)
        if intermediates is not None:
            intermediates["experts"] = routing
        experts = functional.Experts(self.up[...], self.down[...], value_of(self.gate))
        mix = functools.partial(functional.mixture_of_experts, experts=experts, activation=self.activation)
        if self.capacity_factor is None or key is None:
            flat = functional.Routing(*(r.reshape(-1, r.shape[-1]) for r in routing))
            return mix(x.reshape(-1, x.shape[-1]), flat).reshape(x.shape)
        capacity = functional.expert_capacity(x.shape[1], self.up.shape[0], chosen, self.capacity_factor)

        def group(x: Array, routing: functional.Routing) -> Array:
            # Features are not named: the batch, which `vmap` hides, is what fsdp shards.
            place = lambda buffer: constrain(buffer, "experts", None, None)
            return mix(x, routing, capacity=capacity, place=place)

        return constrain(jax.vmap(group)(x, routing), "batch", "length", "model")
