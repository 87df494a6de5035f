"""The validation of a task whose metrics are numbers of NumPy and JAX."""

import json
import types

import jax
import jax.numpy as jnp
import numpy as np

from jaxformer import sharding
from jaxformer.tasks.validation import Validation


def test_metrics_are_plain_numbers():
    """They are written to the log, and a JSON of an np.float32 does not exist."""
    placement = sharding.Placement(sharding.mesh("data=1", jax.devices()[:1]))
    loss = lambda params, batch: (batch.sum(), jnp.float32(batch.size), {"correct": jnp.float32(1)})
    network = types.SimpleNamespace(validation_sums=loss, net=None)
    setup = types.SimpleNamespace(placement=placement, network=network, on_devices=iter, rows=np.arange)
    data = types.SimpleNamespace(
        validation_batches=lambda rows: [jnp.array([1.0, 2.0]), jnp.array([5.0])], vocabulary=None
    )
    task = types.SimpleNamespace(
        predictor=lambda *args: None,
        measure=lambda *args: {"r2": np.float32(0.5), "bias": jnp.float32(2), "right": args[-1]["correct"]},
    )
    state = types.SimpleNamespace(params={}, ema_params=None, step=jnp.int32(3))
    metrics = Validation(task, None, None, data, setup)(state)
    assert json.loads(json.dumps(metrics)) == {"loss": 8 / 3, "r2": 0.5, "bias": 2.0, "right": 2.0}
