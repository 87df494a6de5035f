"""Conversion of a model to equivalent parameters that a Hugging Face model family can express.

    found = equivalent.fitted(net, params)
    interop.save_pretrained("mine", found.net, found.params, family=found.family)

Exact changes turn most models trained by this library into models of a family. Missing biases and token types become
zeros. The dimensions of the model are reordered so that the sines of positions come before the cosines, as in Marian.
The factor of the embeddings is moved into the table, as in GPT-2.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxformer import models
from jaxformer.errors import ConfigError, did_you_mean
from jaxformer.interop.pretrained import FAMILIES, config_json
from jaxformer.models import choices
from jaxformer.modules.pure import Params, Pure, pure

Change = Callable[[Pure, Params, str], tuple[Pure, Params]]
"""A function of a model, its parameters and a family."""


class Fitted(NamedTuple):
    """A model of a family."""

    family: str
    net: Pure
    params: Params


CANDIDATES: dict[Callable[..., object], tuple[str, ...]] = {
    models.EncoderDecoder: ("bart", "mbart", "marian", "pegasus", "m2m_100", "t5", "mt5"),
    models.LanguageModel: ("gpt2", "llama", "mistral", "qwen2", "qwen3"),
    models.MaskedLanguageModel: ("bert", "roberta"),
}
"""The families of each kind of model, in order of preference."""

ON_REQUEST = "distilbert"
"""The family of masked language models that is chosen only by name: a BERT says the same with a token type of zeros."""


def fitted(net: Pure, params: Params, *, family: str = "") -> Fitted:
    """Returns a model of a family of Hugging Face with the same outputs, up to rounding.

    Args:
      family: the ``model_type``; by default, the first of `CANDIDATES` that can express the model.

    Raises:
      ConfigError: no family can express the model (the message has the first difference from each), or the family is
        unknown or for another kind of model.
    """
    known, kind = CANDIDATES.get(net.model, ()), net.model.__name__
    if not known:
        raise ConfigError(f"no family of Hugging Face is known for a {kind}")
    about = "no family of Hugging Face can express this model: "
    if family:
        if family not in FAMILIES:
            raise ConfigError(f"family {family!r} is not known{did_you_mean(family, FAMILIES)}")
        if family not in known and not (family == ON_REQUEST and "bert" in known):
            raise ConfigError(f"a {family} is not a {kind}; its families are {', '.join(known)}")
        known, about = (family,), ""
    reasons: dict[str, str] = {}
    for changes in ((), _CHANGES):  # unchanged, if possible
        for name in known:
            changed = net, params
            for change in changes:
                changed = change(*changed, name)
            try:
                config_json(changed[0], name)
            except ConfigError as error:
                reasons[name] = str(error)
            else:
                return Fitted(name, *changed)
    raise ConfigError(about + "; ".join(reasons.values()))


def _with(net: Pure, **settings: object) -> Pure:
    return pure(net.model, dataclasses.replace(net.config, **settings), **dict(net.parts))


def with_biases(net: Pure, params: Params, family: str) -> tuple[Pure, Params]:
    """Returns a model with biases of zeros where the family has biases and the model has none."""
    network = net.config.feed_forward
    wanted = {"attention_bias": True, "attention_output_bias": None}
    if isinstance(network, choices.Plain):
        wanted["feed_forward"] = dataclasses.replace(network, bias=True)
    if family in ("bart", "mbart", "marian", "pegasus"):
        wanted["output_bias"] = True
    elif family == "llama" and net.config.attention_bias:  # as a qwen2 has them, without that of the output
        wanted = {"attention_output_bias": None}
    elif family != "gpt2":
        return net, params
    biased = _with(net, **wanted)
    return biased, _overlaid(biased.shapes, params)


def with_token_types(net: Pure, params: Params, family: str) -> tuple[Pure, Params]:
    """Returns a model with a token type of zeros where the family has token types and the model has none."""
    if family not in CANDIDATES[models.MaskedLanguageModel] or net.config.num_token_types:
        return net, params
    typed = _with(net, num_token_types=1)
    return typed, _overlaid(typed.shapes, params)


def with_sines_before_cosines(net: Pure, params: Params, family: str) -> tuple[Pure, Params]:
    """Returns a model whose sinusoidal positions are ``[sin, ..., cos, ...]`` instead of ``[sin, cos, sin, ...]``."""
    if net.config.positions != choices.Sinusoidal() or family not in ("marian", "pegasus"):
        return net, params
    dim = net.config.d_model
    order = np.concatenate([np.arange(0, dim, 2), np.arange(1, dim, 2)])

    def reordered(x: jax.Array, axes: tuple[str | None, ...]) -> jax.Array:
        for axis, name in enumerate(axes):
            if name == "model":
                x = jnp.take(x, order, axis=axis)
        return x

    return _with(net, positions=choices.Sinusoidal("halves")), jax.tree.map(reordered, params, net.axes)


def with_plain_embeddings(net: Pure, params: Params, family: str) -> tuple[Pure, Params]:
    """Returns a language model with an embedding factor of 1; with tied embeddings, the final norm keeps the logits."""
    config = net.config
    scale = config.d_model**0.5 if getattr(config, "embedding_scale", 1.0) is None else config.embedding_scale
    if family not in CANDIDATES[models.LanguageModel] or scale in (0.0, 1.0) or not config.has_final_norm:
        return net, params
    decoder = params["decoder"]
    embeddings, norm = decoder["embeddings"], decoder["norm"]
    embeddings = embeddings | {"tokens": {"table": scale * embeddings["tokens"]["table"]}}
    if config.tie_embeddings:
        norm = jax.tree.map(lambda x: x / scale, norm)
    return _with(net, embedding_scale=1.0), params | {"decoder": decoder | {"embeddings": embeddings, "norm": norm}}


_CHANGES = (with_biases, with_token_types, with_sines_before_cosines, with_plain_embeddings)


def _overlaid(shapes: Params, params: Params) -> Params:
    """Returns parameters of these shapes: the given ones, and zeros for the others."""
    return {
        name: _overlaid(shape, params.get(name, {}))
        if isinstance(shape, dict)
        else params.get(name, jnp.zeros(shape.shape, shape.dtype))
        for name, shape in shapes.items()
    }
