"""A small training problem: two arrays, batches by number, and the state, loss and optimizer of it."""

import contextlib
import dataclasses
import itertools
import json

import jax
import jax.numpy as jnp
import numpy as np

from jaxformer import training

OPTIMIZER = training.make_optimizer(training.AdamConfig(learning_rate=0.01, warmup_steps=1, clip_norm=1.0), steps=100)


def init(key):
    return {"kernel": jax.random.normal(key, (4, 3)), "bias": jnp.zeros(3)}


def loss(params, batch, key):
    noise = 0.0 if key is None else 0.1 * jax.random.normal(key, (3,))
    error = batch["x"] @ params["kernel"] + (params["bias"] + noise)[None] - batch["y"]
    return (
        (jnp.square(error).sum(-1) * batch["weight"]).sum(),
        batch["weight"].sum(),
        {"seen": jnp.float32(batch["x"].shape[0])},
    )


def batch(seed, rows=8, nan=False):
    random = np.random.default_rng(seed)
    x = random.normal(size=(rows, 4)).astype(np.float32)
    if nan:
        x[0, 0] = np.nan
    return {
        "x": x,
        "y": random.normal(size=(rows, 3)).astype(np.float32),
        "weight": np.arange(1.0, rows + 1, dtype=np.float32),
    }


def new_state(**options):
    return training.create(init, OPTIMIZER, jax.random.key(0), **options)


STEP = training.make_step(loss, OPTIMIZER)


def start(steps, step=0, worked=0.0):
    """The start of a training for hooks, with the seconds that its steps have taken."""
    timer = training.PhaseTimer()
    timer.working = lambda: worked
    return training.Start(step, steps, timer, settle=lambda: None)


def stream(start):
    return (batch(number) for number in itertools.count(start))


def with_bad(*bad):
    """Batches 0, 1, ... of a plan; these are not finite."""
    return lambda start: (batch(number, nan=number in bad) for number in itertools.count(start))


def abstract(state):
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), state)


def settings(steps, **options):
    """Settings that validate and save nothing at fixed steps, with changes."""
    return training.TrainConfig(**{"steps": steps, "validate_every": 0, "checkpoint_every": 0} | options)


def fit(state, steps, *, config=None, **options):
    return training.fit(STEP, state, options.pop("batches", stream), config=settings(steps, **config or {}), **options)


def saved(folder, steps=(1, 2, 3)):
    states = {}
    with training.Checkpoints(folder) as checkpoints:
        for step in steps:
            states[step] = dataclasses.replace(new_state(), step=jnp.int32(step))
            states[step] = dataclasses.replace(
                states[step],
                params=jax.tree.map(lambda x: x + step, states[step].params),  # noqa: B023
            )
            checkpoints.save(step, states[step], {"note": f"step {step}"})
    return states


@contextlib.contextmanager
def metadata(folder, step):
    """The metadata of a saved step, to be changed; without a digest, which would tell that they were."""
    path = folder / str(step) / "about" / "metadata"
    text = json.loads(path.read_text())
    yield text
    text.pop("digest")
    path.write_text(json.dumps(text))


def flip(path, where):
    data = bytearray(path.read_bytes())
    data[int(len(data) * where)] ^= 0x10
    path.write_bytes(data)


def data_files(step):
    return [p for p in (step / "state").rglob("*") if p.is_file() and "/d/" in str(p)]
