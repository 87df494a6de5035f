"""The token with which a decoder begins, written as other programs assume it.

Programs that read a Pegasus or T5, such as CTranslate2, begin with the padding token, whatever the settings say. Those
that read a Marian begin with a vector of zeros, and take the last token for padding.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxformer.errors import ConfigError
from jaxformer.files import JsonObject
from jaxformer.interop.equivalent import Fitted
from jaxformer.modules.pure import Params
from jaxformer.tokenizers.special_tokens import SpecialTokens
from jaxformer.tokenizers.tokenizer_json import TOKENIZER

_WITH_PADDING = ("marian", "pegasus", "t5", "mt5")
"""The families whose decoders begin with the padding token."""


class Translator(NamedTuple):
    """A translator as a folder of its family."""

    model: Fitted
    special: SpecialTokens
    start: tuple[int, ...]
    """The tokens that a text begins with."""
    first: int
    """The token with which the decoder begins."""
    files: Mapping[str, bytes]
    """The files of the tokenizer."""


def with_start_of_family(found: Translator) -> Translator:
    """Returns a translator whose decoder begins with the token of its family.

    The vectors of padding and of the run's own start are exchanged, so probabilities stay the same: a search chooses
    neither, and an encoder sees neither.

    Raises:
      ConfigError: the family cannot express the start.
    """
    (family, _, params), pad, bos = found.model, found.special.pad, found.special.bos
    if family == "mbart":
        raise ConfigError("the decoder of an mbart begins with the code of a language, which the texts of a run lack")
    if family not in _WITH_PADDING:
        return found
    if bos != pad and {pad, bos} & {found.special.eos, found.special.unk, *found.start}:
        raise ConfigError(
            f"the decoder of a {family} begins with padding, so the start, {bos}, and padding, {pad}, of this "
            "vocabulary must not be tokens of texts"
        )
    found = found._replace(model=found.model._replace(params=_exchanged(params, "decoder", pad, bos)), first=pad)
    return _as_marian(found) if family == "marian" else found


def _as_marian(found: Translator) -> Translator:
    """Returns a translator that begins with zeros, and whose last token is padding."""
    params, pad = _starting_from_zeros(found.model, found.special.pad), found.special.pad
    if TOKENIZER not in found.files:  # the tokenizer of a Marian
        return found._replace(model=found.model._replace(params=params))
    last = found.model.net.config.target_vocab_size - 1
    for side in ("encoder", "decoder"):
        params = _exchanged(params, side, pad, last)
    other = {pad: last, last: pad}
    ids = {name: other.get(token, token) for name, token in dataclasses.asdict(found.special).items()}
    return Translator(
        found.model._replace(params=params),
        SpecialTokens(**ids),
        tuple(other.get(token, token) for token in found.start),
        last,
        {**found.files, TOKENIZER: _with_ids(found.files[TOKENIZER], other)},
    )


def _exchanged(params: Params, side: str, first: int, second: int) -> Params:
    """Returns parameters in which two tokens of one side have exchanged their vectors and biases."""
    part: Params = dict(params[side])

    def exchanged(x: jax.Array) -> jax.Array:
        return x.at[jnp.array([first, second])].set(x[jnp.array([second, first])])

    if "tokens" in (embeddings := part.get("embeddings", {})):
        part["embeddings"] = embeddings | {"tokens": {"table": exchanged(embeddings["tokens"]["table"])}}
    if "output" in part:
        part["output"] = {"kernel": exchanged(part["output"]["kernel"].T).T}
    if "output_bias" in part:
        part["output_bias"] = exchanged(part["output_bias"])
    return params | {side: part}


def _starting_from_zeros(found: Fitted, start: int) -> Params:
    """Returns parameters in which the vector of `start` is zero, and the probabilities are the same.

    The vector is subtracted from all of its table and added again by the biases of the first self-attention, which
    reads the sum of token and position vectors, and whose residual has it too. If the output has the same table, all
    logits of a state change by one number.
    """
    config, params = found.net.config, found.params
    decoder = params["decoder"]
    table = decoder["embeddings"]["tokens"]["table"]
    if not (vector := table[start]).any():
        return params
    sides = ("encoder", "decoder") if config.tie_embeddings in ("all", "inputs") else ("decoder",)
    scale = config.d_model**0.5 if config.embedding_scale is None else config.embedding_scale
    decoder = decoder | {"embeddings": decoder["embeddings"] | {"tokens": {"table": table - vector[None]}}}
    params = params | {"decoder": decoder}
    for side in sides:
        params |= {side: params[side] | {"stack": _with_input(params[side]["stack"], scale * vector)}}
    return params


def _with_input(stack: Params, vector: jax.Array) -> Params:
    """Returns a stack of blocks with the norm after the sum, which adds a vector to its input."""
    attention: Params = dict(stack["layers"]["attention"])
    biases = jnp.einsum("d,d...->...", vector, attention["kernel"][0])
    attention["bias"] = attention["bias"].at[0].add(biases)
    output = attention["output"]
    attention["output"] = output | {"bias": output["bias"].at[0].add(vector)}
    return stack | {"layers": stack["layers"] | {"attention": attention}}


def _with_ids(content: bytes, other: dict[int, int]) -> bytes:
    """Returns a ``tokenizer.json`` in which the tokens of `other` have other ids."""
    rules = json.loads(content)
    model, added = rules["model"], rules.get("added_tokens") or []
    if isinstance(model["vocab"], dict):
        model["vocab"] = {piece: other.get(token, token) for piece, token in model["vocab"].items()}
        known = {*model["vocab"].values()}
    else:
        known = {*range(len(model["vocab"]))}
        if {*other} <= known:
            model["vocab"] = [model["vocab"][other.get(token, token)] for token in range(len(known))]
        model["unk_id"] = other.get(model.get("unk_id"), model.get("unk_id"))
    if not {*other} <= known:  # an added token that the model lacks gets its id from its place
        raise ConfigError(
            "padding is the last token of a marian, which this vocabulary with added tokens cannot express"
        )
    for token in added:
        token["id"] = other.get(token["id"], token["id"])
    rules["added_tokens"] = sorted(added, key=lambda token: token["id"])
    _exchange_in_template(rules.get("post_processor") or {}, other)
    return json.dumps(rules, ensure_ascii=False).encode()


def _exchange_in_template(rules: JsonObject, other: dict[int, int]) -> None:
    for part in rules.get("processors", ()):
        _exchange_in_template(part, other)
    for name in {"sep", "cls"} & {*rules}:
        piece, token = rules[name]
        rules[name] = [piece, other.get(token, token)]
    tokens = rules.get("special_tokens")
    for token in tokens.values() if isinstance(tokens, dict) else ():
        token["ids"] = [other.get(x, x) for x in token["ids"]]
