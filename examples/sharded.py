"""One training step on a mesh of devices, and the same without: the losses are equal.

    python examples/sharded.py                                      # eight virtual devices of one CPU
    python examples/sharded.py --mesh fsdp=4,context=2              # other axes: sharding.AXES has all

The rows of a batch are sharded over `data` and `fsdp`; each kernel, and its moments, over `fsdp` and, by heads, hidden
features or words, over `tensor`. The model knows none of this: it names the dimensions of its arrays,
`sharding.RULES` maps the names to the axes of the mesh, and the compiler adds the communication. It prints how each
parameter is sharded, which device holds which part of a kernel and of a batch, then both losses, equal up to rounding.
`--devices 0` takes the devices that JAX finds. With several processes, `assemble` takes the rows of each:
`Placement.rows_here`.
"""

import argparse

import jax
import numpy as np
import optax

from jaxformer import models, pure, sharding, training

CONFIG = models.LanguageModelConfig(64, num_layers=2, d_model=64, num_heads=4, d_ff=256, dropout=0.0, max_positions=64)
OPTIMIZER = optax.adam(1e-3)


def batch(step: int) -> dict[str, np.ndarray]:
    """Returns rows of letters that count upward by 1, 2 or 3, the same for any mesh."""
    random = np.random.default_rng(step)
    first, by = random.integers(0, 64, (16, 1)), random.integers(1, 4, (16, 1))
    tokens = ((first + by * np.arange(33)[None]) % 64).astype(np.int32)
    return {"tokens": tokens[:, :-1], "labels": tokens[:, 1:]}


def start(mesh: jax.sharding.Mesh):
    """Returns the model, the placement on a mesh, the state, created where it belongs, and the training step."""
    placement = sharding.Placement(mesh)
    attention = sharding.sharded_attention(mesh)  # each device computes its own rows and heads
    net = pure(models.LanguageModel, CONFIG, attention=attention)

    def loss(params, batch, key):
        # One copy of the tied table for each group of devices, so that its gradient is summed over devices once.
        model = net.bind(sharding.with_copies(params, net.axes, batch))
        return model.loss(batch["tokens"], labels=batch["labels"])  # sum, count

    state, shardings = training.create_sharded(net, OPTIMIZER, jax.random.key(0), placement=placement)
    return net, placement, state, training.make_step(placement.with_axis_rules(loss), OPTIMIZER, shardings=shardings)


def losses(mesh: jax.sharding.Mesh, steps: int, *, show: bool = False) -> list[float]:
    """Returns the loss of each step on a mesh; with `show`, prints where things are."""
    net, placement, state, step = start(mesh)
    if show:
        print(placement.describe(state.params, net.axes), end="\n\n")
        kernel = state.params["decoder"]["stack"]["layers"]["feed_forward"]["up"]["kernel"]
        describe("a feed-forward kernel of every layer [layers, model, hidden]", kernel)
        describe("the tokens of a batch [batch, length]", placement.assemble(batch(0))["tokens"])
    result = []
    for index in range(steps):
        state, metrics = step(state, placement.assemble(batch(index)))
        result.append(float(metrics["loss_sum"] / metrics["count"]))
    return result


def describe(name: str, x: jax.Array) -> None:
    """Prints how an array is sharded, and which device holds which part."""
    assert isinstance(x.sharding, jax.sharding.NamedSharding)
    print(f"{name}: {list(x.shape)}, sharded over {tuple(x.sharding.spec)}")
    for shard in x.addressable_shards:
        ranges = [part.indices(size) for part, size in zip(shard.index, x.shape, strict=True)]
        print(f"  device {shard.device.id} has", ", ".join(f"{first}:{stop}" for first, stop, _ in ranges))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--mesh", default="data=2,fsdp=2,tensor=2")
    parser.add_argument("--devices", type=int, default=8, help="virtual devices of this CPU; 0: the devices there are")
    parser.add_argument("--steps", type=int, default=20)
    args = parser.parse_args()
    if args.devices:
        jax.config.update("jax_platforms", "cpu")
        jax.config.update("jax_num_cpu_devices", args.devices)
    on_mesh = losses(sharding.mesh(args.mesh), args.steps, show=True)
    alone = losses(sharding.mesh("data=1", jax.devices()[:1]), args.steps)
    for index in range(0, args.steps, 5):
        print(f"step {index:3}  loss on the mesh {on_mesh[index]:.6f}, on one device {alone[index]:.6f}")
    np.testing.assert_allclose(on_mesh, alone, rtol=1e-4)


if __name__ == "__main__":
    main()
