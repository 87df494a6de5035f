"""Reads and writes folders of Hugging Face: ``config.json`` and weights in safetensors, without PyTorch.

    from jaxformer import interop

    model = interop.load_pretrained("gpt2")               # a folder on this machine
    logits = model.net.apply(model.params, tokens)
    interop.save_pretrained("mine", model.net, params, family="gpt2", settings=model.settings)

Nothing is fetched, and no code of the folder is run. `docs/families.md` lists the families.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import pathlib
import re
from collections.abc import Iterator, Mapping

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from jaxformer import files, sharding
from jaxformer.errors import ConfigError, DataError, did_you_mean, first_few
from jaxformer.interop import bart, bert, gpt2, llama, t5, tensors
from jaxformer.interop.family import Family, Settings, has_head
from jaxformer.interop.packing import Leaf, Shape, Source, Tensor, matched
from jaxformer.models import choices
from jaxformer.models.config import TextConfig, TransformerConfig
from jaxformer.modules.pure import Params, Pure, check_shapes, pure

logger = logging.getLogger(__name__)

FAMILIES: Mapping[str, Family] = {
    **bart.FAMILIES,
    **bert.FAMILIES,
    **gpt2.FAMILIES,
    **llama.FAMILIES,
    **t5.FAMILIES,
}
"""The families by the ``model_type`` of their ``config.json``."""

CONFIG = "config.json"

_NOT_KEPT = ("_name_or_path", "auto_map", "layer_types", "quantization_config", "transformers_version")
"""Settings of the original file that would be wrong in a new one, or repeat others."""


@dataclasses.dataclass(frozen=True)
class Pretrained:
    """A model read from a folder, with its settings."""

    net: Pure
    """The model as pure functions."""
    params: Params
    """Its parameters, float32."""
    family: str
    """The ``model_type``."""
    settings: Settings
    """The ``config.json``, with the ids of special tokens, such as ``eos_token_id``, and the `dtype` of the file."""
    unused: tuple[str, ...]
    """The names of known tensors for which the model has no parameter, such as BERT's pooler."""

    def __repr__(self) -> str:
        """Returns the family, the model and the number of parameters; all values would fill a notebook."""
        model = getattr(self.net.model, "__name__", self.net.model)
        size = sum(leaf.size for leaf in jax.tree.leaves(self.params))
        return f"Pretrained({self.family}, {model}, {size:,} parameters)"


def load_pretrained(
    folder: str | os.PathLike[str], *, mesh: Mesh | sharding.Placement | None = None, **changes: object
) -> Pretrained:
    """Reads a model in the format of Hugging Face from a local folder.

    The tensors determine whether there is a head: BERT and RoBERTa become a `models.MaskedLanguageModel` or an encoder,
    and ViT a `models.VisionTransformer` or an encoder. Weights of NaN or infinity are read, with a warning.

    Args:
      mesh: the devices that share the parameters, by their axis names, or a `sharding.Placement` with its own rules,
        such as for a vocabulary size that the mesh does not divide; each parameter is placed as soon as it is read. By
        default all are on one device.
      changes: settings of the model's configuration that change no parameter, such as ``dropout=0.0``,
        ``compute_dtype="bfloat16"`` or ``remat=True``.

    Raises:
      ConfigError: the package safetensors is not installed; a change is unknown or changes the parameters; or the mesh
        does not divide a parameter.
      DataError: a file is missing or damaged, the folder holds an adapter or quantized weights, the family is unknown,
        a setting has no counterpart here, or names or shapes of tensors differ from what the settings imply.
    """
    folder = files.local_path(folder)
    tensors.check_folder(folder)
    settings = tensors.read_json(folder / CONFIG)
    kind = str(settings.get("model_type"))
    if kind not in FAMILIES:
        known = ", ".join(sorted(FAMILIES))  # the type in a file is not mistyped, so none of them is "meant"
        raise DataError(f"{folder / CONFIG} has model_type {kind!r}, which is not supported; there are {known}")
    family = FAMILIES[kind]
    if isinstance(mesh, Mesh):
        mesh = sharding.Placement(mesh)
    with tensors.Tensors(folder) as weights:
        _check_quantization(settings, weights, folder)
        names = _canonical(family, weights.shapes)
        net = _net(family, settings, {name: weights.shapes[theirs] for name, theirs in names.items()})
        names = _with_originals(family.copies(net), names)
        params, used = _params(family, net, weights, names, mesh)
        unused = _check_others(family, net, weights, names, used)
        dtype = tensors.name_of(weights.dtypes[names[name]] for name in used)
    if weights.nonfinite:
        few = first_few(sorted(weights.nonfinite), 3)
        logger.warning("%s has weights of NaN or infinity, whose results mean nothing: %s", folder, few)
    return Pretrained(_changed(net, changes), params, kind, {**settings, "dtype": dtype}, unused)


def save_pretrained(
    folder: str | os.PathLike[str],
    net: Pure,
    params: Params,
    *,
    family: str,
    settings: Settings | None = None,
    shard_bytes: int = 5 * 10**9,
) -> None:
    """Writes a model as a new folder in the format of Hugging Face; `load_pretrained` returns the same parameters.

    The file has the `dtype` of the settings, such as bfloat16, if all parameters have values of it, else float32.

    Args:
      family: the ``model_type`` to write, one of `FAMILIES`.
      settings: further settings of ``config.json``, such as ``{"eos_token_id": 2}`` or those of `load_pretrained`;
        settings that the model itself determines, such as sizes, are always written from the model.
      shard_bytes: the maximum size of one file, in bytes.

    Raises:
      ConfigError: the package safetensors is not installed, the folder exists, the family is unknown, or the family
        cannot express the model; the message has the first difference.
      ValueError: the parameters do not belong to the model.
    """
    folder = files.local_path(folder)
    files.check_new_folder(folder)
    with files.creating_folder(folder, mode=0o777) as temporary:
        write(temporary, net, params, family=family, settings=settings or {}, shard_bytes=shard_bytes)


def write(
    folder: pathlib.Path, net: Pure, params: Params, *, family: str, settings: Settings, shard_bytes: int = 5 * 10**9
) -> None:
    """Writes a model into an empty folder; see `save_pretrained`."""
    written = config_json(net, family, settings)
    known = FAMILIES[family]
    check_shapes(params, net.shapes)
    dtype = _dtype(params, settings)
    written |= {"torch_dtype": dtype, "dtype": dtype}
    try:
        text = json.dumps(written, indent=2, allow_nan=False) + "\n"
    except (TypeError, ValueError) as error:
        raise ConfigError(f"the settings cannot be written as JSON: {error}") from None
    prefix = known.prefix if has_head(net) else ""
    place = lambda name: name if name.startswith(known.heads) else prefix + name
    named = ((place(name), np.asarray(x, dtype)) for name, x in _unpacked(known, net, params))
    tensors.write(folder, named, shard_bytes=shard_bytes)
    (folder / CONFIG).write_text(text, encoding="utf-8")


def _dtype(params: Params, settings: Settings) -> str:
    """Returns the dtype of the settings if all parameters have values of it, else float32."""
    dtype = settings.get("dtype") or settings.get("torch_dtype")
    leaves = (jnp.asarray(x, jnp.float32) for x in jax.tree.leaves(params))
    if dtype not in tensors.HALVES.values() or not all((x.astype(dtype).astype(x.dtype) == x).all() for x in leaves):
        return "float32"
    return str(dtype)


def _check_quantization(settings: Settings, weights: tensors.Tensors, folder: pathlib.Path) -> None:
    """Checks that the weights of a model with settings of quantization are floats nevertheless."""
    method = settings.get("quantization_config")
    if not method or {*weights.dtypes.values()} <= tensors.FLOATS:
        return
    if isinstance(method, Mapping):
        method = method.get("quant_method", "unknown")
    raise DataError(
        f"the weights in {folder} are quantized (quant_method {method}); only floats are read. Some models of "
        "transformers have a method dequantize, after which save_pretrained writes floats"
    )


def _canonical(family: Family, shapes: Mapping[str, Shape]) -> dict[str, str]:
    """Returns the names in a file by those of the family's table."""
    names: dict[str, str] = {}
    for theirs in shapes:
        name = theirs.removeprefix(family.prefix)
        for old, new in family.renamed:
            name = name.replace(old, new)
        if name in names:
            raise DataError(f"the file has both {names[name]!r} and {theirs!r}")
        names[name] = theirs
    return names


def _with_originals(copies: Mapping[str, str], names: Mapping[str, str]) -> dict[str, str]:
    """Returns the names, with a tensor that the file has only under the name of a copy under its first name."""
    result = dict(names)
    for copy, first in copies.items():
        if first not in result and copy in result:
            result[first] = result.pop(copy)
    return result


def _net(family: Family, settings: Settings, shapes: Mapping[str, Shape]) -> Pure:
    try:
        net = family.net(settings, shapes)
        _ = net.shapes
    except DataError:
        raise
    except (ArithmeticError, LookupError, ValueError) as error:  # or a tensor has too few dimensions
        raise DataError(f"config.json describes no model: {error}") from None
    return net


def _params(
    family: Family, net: Pure, weights: tensors.Tensors, names: Mapping[str, str], placement: sharding.Placement | None
) -> tuple[Params, set[str]]:
    """Returns the parameters, and the names of the tensors that they come from."""
    sources = list(matched(family.table(net), net.shapes))
    used: set[str] = set()
    for leaf, source in sources:  # before anything is read
        used |= _check_shapes(leaf, source, weights, names)
    shardings = [None] * len(sources)
    if placement is not None:
        shardings = jax.tree.leaves(placement.params(net.shapes, net.axes))
    made = [
        jax.device_put(_packed(leaf, source, weights, names), place)
        for (leaf, source), place in zip(sources, shardings, strict=True)
    ]
    return jax.tree.unflatten(jax.tree.structure(net.shapes), made), used


def _check_shapes(leaf: Leaf, source: Source, weights: tensors.Tensors, names: Mapping[str, str]) -> set[str]:
    expected = source.shapes(leaf)
    used: set[str] = set()
    for layer in range(source.num_layers(leaf)):
        for name, shape in zip(source.of_layer(layer), expected, strict=True):
            if name not in names:
                if source.optional:
                    continue
                raise DataError(f"the file has no tensor {name!r}, which config.json implies")
            if (got := weights.shapes[names[name]]) != shape:
                raise DataError(f"tensor {names[name]!r} has shape {got}; config.json implies {shape}")
            used.add(name)
    return used


def _packed(leaf: Leaf, source: Source, weights: tensors.Tensors, names: Mapping[str, str]) -> np.ndarray:
    result = np.zeros(leaf.shape, np.float32)
    layers = source.by_layer(result)
    for i in range(len(layers)):
        if (parts := source.of_layer(i))[0] in names:
            layers[i] = source.packing.load(layers.shape[1:], *(weights.read(names[name]) for name in parts))
    return result


def _check_others(
    family: Family, net: Pure, weights: tensors.Tensors, names: Mapping[str, str], used: set[str]
) -> tuple[str, ...]:
    """Checks the tensors that no parameter comes from; returns the names of those that are not used."""
    copies, computed, unused = family.copies(net), family.computed(net), []
    for name in sorted(names.keys() - used):
        theirs = names[name]
        if name in copies and copies[name] in names:
            if not np.array_equal(weights.read(theirs), weights.read(names[copies[name]]), equal_nan=True):
                raise DataError(f"{theirs!r} differs from {names[copies[name]]!r}, with which it is tied")
        elif name in computed:
            shape, values = computed[name]
            atol = 2e-3  # a sine in bfloat16
            same = weights.shapes[theirs] == shape and np.allclose(weights.read(theirs), values(), rtol=0, atol=atol)
            if not same:
                raise DataError(f"{theirs!r} does not hold the values that the model computes")
        elif any(re.fullmatch(pattern, name) for pattern in family.ignored):
            unused.append(theirs)
        else:
            raise DataError(f"the file has a tensor {theirs!r}, which config.json does not imply")
    return tuple(unused)


def _changed(net: Pure, changes: Mapping[str, object]) -> Pure:
    names = [field.name for field in dataclasses.fields(net.config)]
    for name in changes:
        if name not in names:
            raise ConfigError(f"{name} is not a setting of a {type(net.config).__name__}{did_you_mean(name, names)}")
    try:
        changed = pure(net.model, dataclasses.replace(net.config, **changes), **dict(net.parts))
        check_shapes(changed.shapes, net.shapes)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"these settings cannot be changed: {error}") from None
    return changed


def config_json(net: Pure, kind: str, settings: Settings | None = None) -> dict[str, object]:
    """Returns the ``config.json`` of a model, from which it can be read back.

    Args:
      kind: the ``model_type``.
      settings: further settings.
    """
    if kind not in FAMILIES:
        raise ConfigError(f"family {kind!r} is not known{did_you_mean(kind, FAMILIES)}")
    family, settings = FAMILIES[kind], settings or {}
    try:
        of_model = family.settings(net)
        labels = [
            x for x in ("id2label", "label2id") if x in of_model and len(settings.get(x) or ()) == len(of_model[x])
        ]
        kept = {name: value for name, value in settings.items() if name not in _NOT_KEPT}
        written = {**kept, **of_model, **{name: settings[name] for name in labels}, "model_type": kind}
        shapes = dict(_shapes(family, net))
        again = family.net(written, shapes)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        reason = str(error).replace(" in config.json", "")  # there is no file yet
        raise ConfigError(f"{kind} has no settings for this model: {reason}") from None
    wanted, got = effective(net.config), effective(again.config)
    for name in wanted:
        if wanted[name] != got.get(name):
            raise ConfigError(
                f"{kind} cannot express {name}={wanted[name]!r}: a model with its settings has {got.get(name)!r}"
            )
    if again.model is not net.model:
        raise ConfigError(f"{kind} would be read as a {again.model.__name__}, but this is a {net.model.__name__}")
    return {**written, "torch_dtype": "float32", "dtype": "float32"}


def _shapes(family: Family, net: Pure) -> Iterator[tuple[str, Shape]]:
    for leaf, source in matched(family.table(net), net.shapes):
        for layer in range(source.num_layers(leaf)):
            yield from zip(source.of_layer(layer), source.shapes(leaf), strict=True)


def _unpacked(family: Family, net: Pure, params: Params) -> Iterator[tuple[str, Tensor]]:
    """Yields the tensors of a file, one after the other."""
    copies, repeated = family.copies(net), family.repeated(net)
    for leaf, source in matched(family.table(net), params):
        x = np.asarray(leaf, np.float32)
        for i, layer in enumerate(source.by_layer(x)):
            for name, tensor in zip(source.of_layer(i), source.packing.save(layer, len(source.names)), strict=True):
                yield name, tensor
                yield from ((copy, tensor) for copy in repeated if copies[copy] == name)
    for name, (_, values) in family.computed(net).items():
        yield name, np.asarray(values())


def effective(config: TransformerConfig) -> dict[str, object]:
    """Returns the settings that determine what a model computes from its parameters, with defaults resolved.

    Settings of training and precision, and of parts that the model does not have, are omitted.
    """
    settings = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    settings["num_kv_heads"] = config.num_kv_heads or config.num_heads
    settings["head_dim"] = head_dim = config.head_dim or config.d_model // config.num_heads
    settings["final_norm"] = config.has_final_norm
    if config.attention_scale is None:
        settings["attention_scale"] = head_dim**-0.5
    if config.attention_output_bias is None:
        settings["attention_output_bias"] = config.attention_bias
    for name in ("embedding_dropout", "dropout", "attention_dropout", "initialization", "remat", "compute_dtype"):
        del settings[name]
    if isinstance(config.feed_forward, choices.Plain):
        settings["feed_forward"] = dataclasses.replace(config.feed_forward, dropout=0.0)
    if not isinstance(config, TextConfig):
        return settings
    if config.embedding_scale is None:
        settings["embedding_scale"] = config.d_model**0.5
    if config.length_limit is None:
        del settings["max_positions"]
    return settings
