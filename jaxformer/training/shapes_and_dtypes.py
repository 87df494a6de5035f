"""The shapes and dtypes of a state by the names of its arrays, and the error for a checkpoint that does not match."""

from __future__ import annotations

import functools
import types
from collections.abc import Mapping

import jax
import numpy as np

from jaxformer.errors import JaxformerError
from jaxformer.training.state import Tree

Kind = tuple[tuple[int, ...], str] | types.EllipsisType
"""The shape and the dtype of an array, or ``...`` for one that is left out."""


class CheckpointError(JaxformerError, RuntimeError):
    """There is no usable checkpoint, or one cannot be written."""


class OtherModelError(CheckpointError):
    """An intact checkpoint holds other arrays, shapes or dtypes than the requested ones, or belongs to another run."""

    exit_code = 2


def shapes_and_dtypes(tree: Tree) -> dict[str, Kind]:
    """Returns the shape and the dtype of each leaf by its path; a leaf ``...`` stays as it is.

    >>> shapes_and_dtypes({"w": [np.zeros((2, 3), np.float32), ...]})
    {'w/0': ((2, 3), 'float32'), 'w/1': Ellipsis}
    """
    of_leaf = lambda leaf: leaf if leaf is ... else (tuple(leaf.shape), np.dtype(leaf.dtype).name)
    # Attributes, keys and indices look the same, because a save does not distinguish them.
    name = functools.partial(jax.tree_util.keystr, simple=True, separator="/")
    return {name(path): of_leaf(leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}


def check_shapes_and_dtypes(saved: Mapping[str, Kind], target: Mapping[str, Kind], field: str = "") -> None:
    """Checks paths, shapes and dtypes: Orbax would cast a dtype without a warning.

    Args:
      field: the field of the state to check; all by default.

    Raises:
      OtherModelError: they differ; the message names one path that does, outside of the optimizer's state if possible.
    """
    paths = sorted(path for path in saved.keys() | target.keys() if not field or path.split("/")[0] == field)
    pairs = {path: (saved.get(path, "missing"), target.get(path, "missing")) for path in paths}
    wrong = [path for path, (was, now) in pairs.items() if was != now and not (now is ... and path in saved)]
    if not wrong:
        return
    of_model = [path for path in wrong if path.split("/")[0] != "optimizer"]
    path = (of_model or wrong)[0]
    was, now = pairs[path]
    if of_model:
        raise OtherModelError(f"it belongs to another model: {path} is {was} in the checkpoint and {now} in this model")
    raise OtherModelError(
        f"it has the state of another optimizer: {path} is {was} in the checkpoint and {now} in this optimizer; "
        "`restore_params` reads the parameters alone"
    )
