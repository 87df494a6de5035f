"""The mixture-of-experts feed-forward layer."""

from __future__ import annotations

import functools

import jax
from flax import nnx
from jaxtyping import Array, Bool, Float

from jaxformer import functional
from jaxformer.axes import constrain
from jaxformer.functional.feed_forward import Activation
from jaxformer.modules.captured import Intermediates
from jaxformer.modules.initializers import UNIT_GAINS, Gains, xavier_uniform
from jaxformer.modules.linear import value_of


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
        if not 1 <= num_experts_per_token <= num_experts:
            raise ValueError(
                f"num_experts_per_token must be between 1 and {num_experts} experts, got {num_experts_per_token}"
            )
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
