"""A training step of a small model, lowered for a mesh."""

import functools

import jax
import jax.numpy as jnp

from jaxformer import functional, models, pure, sharding, targets, training
from jaxformer.data.batch import Batch
from jaxformer.planning import flops
from jaxformer.planning.forecast import Costs, DeviceMemory, Forecast, Workload
from jaxformer.planning.hlo import Collective
from jaxformer.planning.roofline import Roofline
from tests.sharding.small import network

OPTIMIZER = training.make_optimizer(training.AdamConfig(), steps=1000)


def loss(net, params, batch, key):
    model = net.bind(sharding.with_copies(params, net.axes, batch, dtype=net.config.compute_dtype))
    total, count = model.loss(
        batch.source, batch.target, labels=batch.labels, loss=functional.CrossEntropy(smoothing=0.1), key=key
    )
    return total, count, {}


def maker(net):
    return functools.partial(training.create, net.init, OPTIMIZER, jax.random.key(0))


def abstract_state(config, placement):
    """Shapes and shardings of the state of a model on a mesh."""
    net = network(placement, config)
    shardings = placement.state(maker(net), placement.params(net.shapes, net.axes), OPTIMIZER)
    place = lambda x, sharding: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)
    return jax.tree.map(place, jax.eval_shape(maker(net)), shardings)


def lowered(config, mesh, shape, *, parts=1):
    """The training step for batches of these rows, source and target lengths."""
    num_rows, source, target = shape
    placement = sharding.Placement(mesh)
    state = abstract_state(config, placement)
    shardings = jax.tree.map(lambda x: x.sharding, state)
    within = placement.with_axis_rules(functools.partial(loss, network(placement, config)))
    step = training.make_step(within, OPTIMIZER, num_microbatches=parts, shardings=shardings)
    place = lambda length, dtype: jax.ShapeDtypeStruct((num_rows, length), dtype, sharding=placement.rows)
    tokens = lambda length: functional.Tokens(place(length, jnp.int32), place(length, jnp.bool_))
    batch = Batch(tokens(source), tokens(target), place(target, jnp.int32))
    with targets.compiling_for(mesh.devices.flatten().tolist()):
        return step.lower(state, batch)


def step_flops(config: models.EncoderDecoderConfig, num_rows: int, *lengths: int) -> tuple[int, int]:
    """The operations of the model in a training step, and with those that its backward pass repeats."""
    net = pure(models.EncoderDecoder, config, attention=flops.attention)
    tokens = [jax.ShapeDtypeStruct((num_rows, length), jnp.int32) for length in lengths]
    graph = flops.forward(net.apply, net.shapes, *tokens)
    model = 3 * flops.flops(graph)
    return model, model + flops.repeated(graph)


def workload(config: models.EncoderDecoderConfig, mesh, shape, *, parts=1):
    """What a task gives to a forecast."""
    model, computed = step_flops(config, *shape)
    return Workload(
        lowered(config, mesh, shape, parts=parts),
        abstract_state(config, sharding.Placement(mesh)),
        Costs(
            batch=shape,
            description=f"{shape[0]} pairs",
            tokens=shape[0] * shape[2],
            parameters=pure(models.EncoderDecoder, config).num_parameters,
            flops=model,
            computed_flops=computed,
            compute_dtype=config.compute_dtype,
        ),
    )


def tight(parameters, optimizer, peak, rows=96):
    """An artificial forecast for three parts on 4 x 2 devices of 16 GiB, with these GiB of each kind."""
    memory = DeviceMemory(parameters=parameters << 30, optimizer=optimizer << 30, peak=peak << 30, available=16 << 30)
    one = Collective("all-gather", 2**20, 2**20, 4, ("fsdp",), 8, "")
    batch, mesh = (rows, 48, 48), {"fsdp": 4, "tensor": 2}
    return Forecast(
        topology="v5e:2x4",
        mesh=mesh,
        batch=batch,
        description=f"{rows} pairs",
        tokens=rows * 48,
        parameters=10,
        flops=1e12,
        computed_flops=1.1e12,
        compute_dtype="bfloat16",
        memory=memory,
        collectives=(one,),
        estimate=Roofline(1, 2, 3),
    )
