"""Warm starts: runs that begin with the matching parameters of another run."""

from __future__ import annotations

import dataclasses
import json
import pathlib
import zlib
from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp

from jaxformer import training
from jaxformer.axes import parameter_name
from jaxformer.config import flat, to_data
from jaxformer.errors import ConfigError, first_few
from jaxformer.files import write_text
from jaxformer.functional import resize_positions
from jaxformer.models.classifier import grid, resized_table
from jaxformer.models.config import ImageEncoderConfig, TextConfig
from jaxformer.modules.lora import ADAPTERS
from jaxformer.modules.pure import Params
from jaxformer.multihost import processes
from jaxformer.tasks import own_attention, own_files, registry, restore
from jaxformer.tasks.base import Say
from jaxformer.tasks.config import FREE_SETTINGS, TaskConfig
from jaxformer.tasks.training_setup import TrainingSetup


@dataclasses.dataclass(frozen=True)
class WarmStart:
    """The paths of the parameters that were taken from another run, and of those that were not."""

    taken: tuple[str, ...]
    new: Mapping[str, str]
    """Parameters that keep their initial values, with the reason."""
    unused: tuple[str, ...]
    """Parameters of the other run that this one does not have."""
    resized: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Parameters in `taken` that have another number of rows in the other run, with the numbers."""

    def report(self) -> list[str]:
        """Returns lines for the user: the counts, then each parameter that was not taken as it is."""
        lines = [f"{len(self.taken)} parameters taken, {len(self.new)} new, {len(self.unused)} of the other run unused"]
        lines += [f"  resized: {name} ({how})" for name, how in self.resized.items()]
        lines += [f"  new: {name} ({reason})" for name, reason in self.new.items()]
        return lines + [f"  unused: {name}" for name in self.unused]


Resize = Callable[[str, jax.Array, jax.Array], tuple[jax.Array, str] | None]
"""A function from the name of a parameter, its initial value and that of the other run, which has another shape, to a
value of the initial one's shape and words about it; or to None if there is no such value."""


def merge(initial: Params, source: Params, resize: Resize = lambda name, leaf, other: None) -> tuple[Params, WarmStart]:
    """Replaces each initial parameter with the one of the same path and shape in `source`, if there is one.

    A parameter of the same path and another shape is replaced by the result of `resize`, if that is not None.

    >>> params, about = merge({"a": jax.numpy.zeros(2), "b": jax.numpy.zeros(3)}, {"a": jax.numpy.ones(2)})
    >>> params["a"].tolist(), about.taken, dict(about.new)
    ([1.0, 1.0], ('a',), {'b': 'the other run has none'})
    """
    source_leaves = {parameter_name(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(source)}
    taken: list[str] = []
    new: dict[str, str] = {}
    resized: dict[str, str] = {}

    def choose(path: tuple, leaf: jax.Array) -> jax.Array:
        name = parameter_name(path)
        other = source_leaves.pop(name, None)
        if other is None:
            new[name] = "the other run has none"
        elif other.shape == leaf.shape:
            taken.append(name)
            return jax.device_put(other.astype(leaf.dtype), leaf.sharding)
        elif made := resize(name, leaf, other):
            taken.append(name)
            leaf, resized[name] = made
        else:
            new[name] = f"its shape is {list(leaf.shape)}, in the other run {list(other.shape)}"
        return leaf

    params = jax.tree_util.tree_map_with_path(choose, initial)
    return params, WarmStart(tuple(taken), new, tuple(sorted(source_leaves)), resized)


def resizer(config: TaskConfig, source: TaskConfig) -> Resize:
    """Returns the function for `merge` that makes tables of learned positions by `config.init_positions`.

    The positions of a grid of patches are interpolated in both directions, as in `models.with_image_size`.
    """

    there, here = (getattr(each, "model", None) for each in (source, config))

    def resize(name: str, leaf: jax.Array, other: jax.Array) -> tuple[jax.Array, str] | None:
        is_table = name.endswith("embeddings/positions/table")
        if is_table and isinstance(there, ImageEncoderConfig) and isinstance(here, ImageEncoderConfig):
            return resized_grid(there, here, leaf, other)
        if not is_table or not isinstance(there, TextConfig) or not isinstance(here, TextConfig):
            return None
        old, new = there.max_positions, here.max_positions
        offset, same = (getattr(model.positions, "offset", 0) for model in (there, here))
        shapes = [(number + offset, leaf.shape[-1]) for number in (old, new)]
        if offset != same or [other.shape, leaf.shape] != shapes:
            return None
        method = "truncate" if new < old and config.init_positions != "interpolate" else config.init_positions

        def make(table: jax.Array) -> jax.Array:
            key = jax.random.fold_in(jax.random.key(config.seed), zlib.crc32(name.encode()))
            rows = resize_positions(table[offset:], new, method=method, key=key)
            return jnp.concatenate([table[:offset], rows]).astype(leaf.dtype)

        how = f"{old:,} positions there and {new:,} here: {method}"
        how += ", with new rows drawn at random" if method == "extend" else ""
        return jax.jit(make, out_shardings=leaf.sharding)(other), how

    return resize


def resized_grid(
    there: ImageEncoderConfig, here: ImageEncoderConfig, leaf: jax.Array, other: jax.Array
) -> tuple[jax.Array, str] | None:
    """Returns the table of positions for images of another size and words about it; None if the patches differ."""
    same = (there.patch_size, there.has_class_vector) == (here.patch_size, here.has_class_vector)
    if not same or other.shape[-1] != leaf.shape[-1]:
        return None
    make = lambda table: resized_table(table, there, here).astype(leaf.dtype)
    old, new = ("{} x {}".format(*grid(config)) for config in (there, here))
    return jax.jit(make, out_shardings=leaf.sharding)(other), f"{old} patches there and {new} here: bicubic"


def check(config: TaskConfig, about: WarmStart) -> None:
    """Checks that a warm start took something, and that the setting `init_positions` had an effect."""
    if not about.taken:
        raise ConfigError(f"init_from {config.init_from}: no parameter fits; {about.report()[1].strip()}")
    if config.init_positions != TaskConfig.init_positions and not about.resized:
        raise ConfigError(
            f"init_positions {config.init_positions} has no effect: {config.init_from} has no table of positions "
            "of another length; see model.max_positions"
        )


def differences(config: TaskConfig, other: TaskConfig) -> list[str]:
    """Returns a warning if two runs have models of the same class with other settings, and else nothing.

    The shapes of the parameters do not show all of them: the activation does not, and a grid of patches only by its
    size. The number of positions is not among them, because `report` has it.
    """
    here, there = getattr(config, "model", None), getattr(other, "model", None)
    if type(here) is not type(there) or not dataclasses.is_dataclass(here):
        return []
    old, new = flat(to_data(there)), flat(to_data(here))
    free = FREE_SETTINGS | {"max_positions"}
    names = [name for name in new if name.split(".")[-1] not in free and old.get(name) != new[name]]
    words = [f"{name} is {old.get(name)} there and {new[name]} here" for name in names]
    if config.attention != other.attention:
        of = lambda config: config.attention or "the library's"
        words.append(f"attention is {of(other)} there and {of(config)} here")
    what = ", ".join(words)
    return [f"WARNING: settings of the model differ from those of that run: {what}"] if what else []


def never_learned(frozen: Params, about: WarmStart | None) -> list[str]:
    """Returns the names of the parameters that are neither trained nor taken from another run, except adapters.

    Args:
      frozen: True for each parameter that is not trained.
      about: what was taken from another run, None for nothing.

    >>> never_learned({"a": True, "b": True, "c": False}, WarmStart(("a",), {"b": "", "c": ""}, ()))
    ['b']
    """
    names = [parameter_name(path) for path, is_frozen in jax.tree_util.tree_leaves_with_path(frozen) if is_frozen]
    return [x for x in names if (about is None or x in about.new) and not x.startswith(f"{ADAPTERS}/")]


def trained_beside_adapters(config: TaskConfig, setup: TrainingSetup) -> list[str]:
    """Returns the parts of a model with adapters in which no matrix is frozen."""
    if not config.tune.adapters:
        return []
    shapes = setup.network.net.shapes
    parts = [part for part in ("encoder", "decoder") if part in shapes]
    if (frozen := setup.frozen) is None:
        return parts
    fixed = jax.tree.map(lambda keeps, shape: keeps and len(shape.shape) > 1, frozen, shapes)
    return [] if any(any(jax.tree.leaves(fixed[part])) for part in parts) else parts


def first_state(config: TaskConfig, setup: TrainingSetup, out: pathlib.Path, say: Say) -> training.TrainState:
    """Returns the state before the first step, with the parameters of another run if `init_from` names one."""
    state, about = setup.new_state(), None
    if (warmup := config.optimizer.warmup_steps) > config.train.steps:
        say(f"WARNING: train.steps ends in the warm-up of {warmup:,} steps, below the peak of the learning rate")
    if parts := trained_beside_adapters(config, setup):
        patterns = ",".join(f"{part}/*" for part in parts)
        say(f"WARNING: tune.adapters are trained beside all matrices; --tune.frozen '{patterns}' freezes those")
    if config.init_from:
        state, about = _started(config, setup, state, out, say)
    if about is not None and processes.is_first():
        write_text(out / "init.json", json.dumps(dataclasses.asdict(about), indent=2) + "\n")
    if setup.frozen is not None and (names := never_learned(setup.frozen, about)):
        say(
            f"WARNING: {len(names)} parameters that tune.frozen names keep their initial values, because init_from "
            f"gives no others: {first_few(names, 3)}"
        )
    return state


def _started(
    config: TaskConfig, setup: TrainingSetup, state: training.TrainState, out: pathlib.Path, say: Say
) -> tuple[training.TrainState, WarmStart]:
    """Returns a state with the parameters of the run that `init_from` names, and which they are."""
    source, checkpoint = registry.split_init(config.init_from)
    other = registry.read_config(source)
    attention = setup.attention if own_files.are_same(config.attention, other.attention) else None
    if attention is None and other.attention:
        try:
            attention = own_attention.load(other.attention, source).attention
        except ConfigError as error:
            hint = "with --attention, this run has it, too"
            raise ConfigError(f"init_from {config.init_from}: {error}; {hint}") from error
    params, _ = restore.load_params(source, checkpoint, setup.config.mesh, attention)
    params = registry.task_of(config).renamed(params, other, source, out)
    params, about = merge(state.params, params, resizer(config, other))
    check(config, about)
    for line in (f"starting from {config.init_from}:", *about.report(), *differences(config, other)):
        say(line)
    ema = None if state.ema_params is None else jax.tree.map(jnp.copy, params)
    return dataclasses.replace(state, params=params, ema_params=ema), about
