"""The shape of a mixture of experts. Importing it imports no JAX."""

from __future__ import annotations

import dataclasses
import math


@dataclasses.dataclass(frozen=True)
class ExpertsConfig:
    """A mixture of experts in place of each feed-forward network."""

    num_experts: int = 8
    """The number of experts."""
    num_experts_per_token: int = 2
    """The number of experts that each token is sent to (top-k routing)."""
    capacity_factor: float | None = None
    """The maximum number of tokens per expert in training, relative to an even share; None for no limit, in which case
    XLA may compute every expert for every token on a GPU."""
    gated: bool = False
    """Use gated feed-forward networks (GLU) as experts."""
    load_balancing_weight: float = 0.01
    """The weight of the load-balancing loss in training."""

    def __post_init__(self) -> None:
        if self.capacity_factor is not None and not 0 < self.capacity_factor < math.inf:
            raise ValueError(f"capacity_factor must be above 0 and finite, or None, got {self.capacity_factor}")
        if not 0 <= self.load_balancing_weight < math.inf:
            raise ValueError(f"load_balancing_weight must be at least 0 and finite, got {self.load_balancing_weight}")
