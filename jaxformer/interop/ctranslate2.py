"""Models in the format of CTranslate2, which decodes on CPUs and GPUs, in int8 too; writing needs no package.

The package ctranslate2 is imported in this file only, by `difference`, which compares a written folder with the model.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import importlib.util
import json
import pathlib
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

import jax
import numpy as np

from jaxformer import functional, models
from jaxformer.config import flat
from jaxformer.errors import ConfigError
from jaxformer.interop import packing
from jaxformer.models import choices
from jaxformer.models.config import EncoderDecoderConfig
from jaxformer.modules.pure import Params, Pure

Quantization = Literal["", "int8"]
Variables = Mapping[str, np.ndarray | str]
"""Arrays by their names, and the names of others that share an array."""

POSITIONS = 1024
"""The number of position vectors of a model without a table; CTranslate2 cuts texts at this number of tokens, too."""

_ACTIVATIONS = {"relu": 0, "gelu_tanh": 1, "silu": 2, "gelu": 3}
_DTYPES = {"float32": 0, "int8": 1, "int16": 2, "int32": 3}
_KINDS = {models.EncoderDecoder: ("TransformerSpec", 7), models.LanguageModel: ("TransformerDecoderSpec", 8)}
"""The name and the revision of the format by the kind of model."""
_TABLE = "decoder/embeddings/weight"
_VECTORS = (choices.Sinusoidal, choices.Learned, choices.Raw, type(None))
"""The positions that are vectors, or none, which CTranslate2 reads from a table."""

Save = Callable[[np.ndarray], Any]
_same: Save = lambda x: x
_linear: Save = lambda x: x.T
_queries: Save = lambda x: packing.TO_HEADS.save(x, 1)[0]
_grouped: Callable[[int], Save] = lambda number: lambda x: np.concatenate(packing.GROUPS.save(x, number))
_joined: Save = lambda x: packing.FROM_HEADS.save(x, 1)[0]

_NORM = {"scale": ("gamma", _same), "bias": ("beta", _same)}
_OUTPUT = {"kernel": ("weight", _joined), "bias": ("bias", _same)}
_PLAIN = {"kernel": ("weight", _linear), "bias": ("bias", _same)}
_NESTED = {
    "attention.output": ("self_attention/linear_1", _OUTPUT),
    "attention_norm": ("self_attention/layer_norm", _NORM),
    "attention.query_norm": ("self_attention/q_norm", _NORM),
    "attention.key_norm": ("self_attention/k_norm", _NORM),
    "cross.output": ("attention/linear_2", _OUTPUT),
    "cross_norm": ("attention/layer_norm", _NORM),
    "feed_forward.up": ("ffn/linear_0", _PLAIN),
    "feed_forward.down": ("ffn/linear_1", _PLAIN),
    "feed_forward_norm": ("ffn/layer_norm", _NORM),
    "norm": ("layer_norm", _NORM),
    "embeddings.norm": ("layernorm_embedding", _NORM),
}
_PLACES: dict[str, tuple[str, Save]] = {
    "attention.kernel": ("self_attention/linear_0/weight", _grouped(3)),
    "attention.bias": ("self_attention/linear_0/bias", _grouped(3)),
    "cross.query": ("attention/linear_0/weight", _queries),
    "cross.query_bias": ("attention/linear_0/bias", _queries),
    "cross.key_value": ("attention/linear_1/weight", _grouped(2)),
    "cross.key_value_bias": ("attention/linear_1/bias", _grouped(2)),
    "feed_forward.gate.kernel": ("ffn/linear_0/weight", _linear),
    "feed_forward.gate.bias": ("ffn/linear_0/bias", _same),
    "embeddings.tokens.table": ("embeddings/weight", _same),
    "output.kernel": ("projection/weight", _linear),
    "output_bias": ("projection/bias", _same),
    **{
        f"{ours}.{leaf}": (f"{theirs}/{name}", save)
        for ours, (theirs, leaves) in _NESTED.items()
        for leaf, (name, save) in leaves.items()
    },
}
"""The place of each parameter within its side or its layer, and the change of its array."""


@dataclasses.dataclass(frozen=True)
class Vocabulary:
    """The names of all tokens, and of those with a meaning."""

    pieces: Sequence[str]
    bos: str
    """The token with which a decoder begins."""
    eos: str
    unk: str


def check(net: Pure) -> None:
    """Checks that CTranslate2 can compute what a model computes.

    Raises:
      ConfigError: it lacks the kind of model, or a setting; the message has the first.
    """
    if net.model not in _KINDS:
        raise ConfigError(f"CTranslate2 has no {getattr(net.model, '__name__', 'model')} like that of this run")
    config = net.config
    positions, norm, network = config.positions, config.norm, config.feed_forward
    has_positions = isinstance(positions, _VECTORS) or (
        positions.scaling is None
        if isinstance(positions, choices.Rotary)
        else isinstance(positions, choices.T5) and net.model is models.EncoderDecoder  # prompts would be wrong
    )
    has_norm = isinstance(norm, choices.RMSNorm) or (isinstance(norm, choices.LayerNorm) and norm.form == "variance")
    lacking = {
        "norm": None if has_norm else norm,
        "norm_position": None if config.norm_position in ("post", "pre") else config.norm_position,
        "positions": None if has_positions else positions,
        "feed_forward": None if isinstance(network, choices.Plain) else network,
        "num_token_types": config.num_token_types or None,
        "causal": None if getattr(config, "causal", True) else False,
        "attention_sinks": config.attention_sinks or None,
        # With 4.8.5, a translator with it has other scores at each call.
        "qk_norm": True if config.qk_norm and net.model is models.EncoderDecoder else None,
        **{name: getattr(config, name) for name in ("attention_soft_cap", "attention_window")},
    }
    for name, value in lacking.items():
        if value is not None:
            raise ConfigError(f"CTranslate2 cannot express model.{name} {getattr(value, 'kind', value)} of this model")


def variables(
    net: Pure, params: Params, vocabulary: Vocabulary, quantization: Quantization = ""
) -> dict[str, np.ndarray | str]:
    """Returns the variables of a model by CTranslate2's names, float32 or, for matrices, quantized."""
    check(net)
    config, pair = net.config, net.model is models.EncoderDecoder
    found: dict[str, np.ndarray | str] = {}
    for side, depth in _depths(config).items():
        found |= _settings(config, side, depth)
        for name, x in _placed(flat(params[side]), side, depth):
            found[name] = np.ascontiguousarray(x, "<f4")
    found.setdefault("decoder/projection/weight", _TABLE)
    if pair:
        found["encoder/embeddings_0/weight"] = found.pop("encoder/embeddings/weight", _TABLE)
    if isinstance(config.positions, _VECTORS):
        found |= _position_vectors(config, params)
    tables = [found[name] for name in (_TABLE, "encoder/embeddings_0/weight")[: 1 + pair]]
    rows, size = {len(x) for x in tables if isinstance(x, np.ndarray)}, len(vocabulary.pieces)
    if rows != {size}:
        raise ConfigError(f"the vocabulary has {size} tokens, but the tables of the model have {sorted(rows)}")
    if len({*vocabulary.pieces}) < size:
        raise ConfigError("CTranslate2 knows tokens by their names, and two tokens of this vocabulary have one name")
    if quantization:
        found = quantized(found)
    largest = max((x for x in found.values() if isinstance(x, np.ndarray)), key=lambda x: x.nbytes)
    if largest.nbytes >= 2**32:
        raise ConfigError(f"an array of CTranslate2 has less than 4 GiB, got shape {largest.shape}, {largest.dtype}")
    return found


def _depths(config: Any) -> dict[str, int]:
    """Returns the number of layers of each side."""
    if isinstance(config, EncoderDecoderConfig):
        return {"encoder": config.num_encoder_layers, "decoder": config.num_decoder_layers}
    return {"decoder": config.num_layers}


def _placed(leaves: Mapping[str, Any], side: str, depth: int) -> Iterator[tuple[str, np.ndarray]]:
    """Yields the variables of the parameters of one side."""
    gated = "stack.layers.feed_forward.gate.kernel" in leaves
    for path, leaf in leaves.items():
        x, name = np.asarray(leaf, np.float32), path.removeprefix("stack.layers.")
        if name == "embeddings.positions.table":
            continue
        if name == "bias.table":  # of T5, which all layers share
            yield from ((f"{side}/layer_{i}/self_attention/relative_attention_bias", x) for i in range(depth))
            continue
        if name not in _PLACES:
            raise ConfigError(f"CTranslate2 has no place for the parameter {side}.{path}")
        place, save = _PLACES[name]
        if gated and name.startswith("feed_forward.up"):
            place = place.replace("linear_0", "linear_0_noact")
        if name == path:
            yield f"{side}/{place}", save(x)
        else:
            yield from ((f"{side}/layer_{i}/{place}", save(layer)) for i, layer in enumerate(x))


def _settings(config: Any, side: str, depth: int) -> dict[str, np.ndarray]:
    """Returns the settings of one side, which are variables, too."""
    scale = config.d_model**0.5 if config.embedding_scale is None else config.embedding_scale
    flags = {"pre_norm": config.norm_position == "pre", "activation": _ACTIVATIONS[config.activation]}
    found = {"num_heads": np.asarray(config.num_heads, "<i2"), "scale_embeddings": np.asarray(scale, "<f4")}
    if side == "encoder":
        flags |= {"embeddings_merge": 0, "multi_query_attention": 0}
    else:
        flags |= dict.fromkeys(("alibi", "alibi_use_positive_positions", "scale_alibi", "start_from_zero_embedding"), 0)
        # A coverage penalty reads the attention of the last layer, as here the mean over its heads.
        found |= {"alignment_layer": np.asarray(-1, "<i2"), "alignment_heads": found["num_heads"]}
        found["scale_outputs"] = np.asarray(config.output_scale, "<f4")
    found |= {name: np.asarray(x, "i1") for name, x in flags.items()}
    heads = {"head_dim": np.asarray(config.dim_of_heads, "<i4")}
    if config.num_kv_heads not in (None, config.num_heads):
        heads["num_heads_kv"] = np.asarray(config.num_kv_heads, "<i4")
    if config.attention_scale is not None:
        heads["queries_scale"] = np.asarray(config.attention_scale, "<f4")
    of_self = dict(heads)
    match config.positions:
        case choices.Rotary(base=base, pairs=pairs):
            of_self |= {"rotary_dim": np.asarray(0, "<i4"), "rotary_base": np.asarray(base, "<f4")}
            of_self["rotary_interleave"] = np.asarray(pairs == "neighbors", "i1")
        case choices.T5(max_distance=distance):
            of_self["relative_attention_max_distance"] = np.asarray(distance, "<i4")
        case _:
            pass
    kinds = {"self_attention": of_self}
    if side == "decoder" and isinstance(config, EncoderDecoderConfig):
        kinds["attention"] = heads
    found |= {
        f"layer_{i}/{kind}/{name}": x
        for i in range(depth)
        for kind, given in kinds.items()
        for name, x in given.items()
    }
    return {f"{side}/{name}": x for name, x in found.items()}


def _position_vectors(config: Any, params: Params) -> dict[str, np.ndarray | str]:
    """Returns the table of each side; without one, CTranslate2 would take other sinusoids."""
    name, numbers, dim = "position_encodings/encodings", np.arange(POSITIONS), config.d_model
    sides = list(_depths(config))
    match config.positions:
        case choices.Learned(offset=offset):
            tables = {side: params[side]["embeddings"]["positions"]["table"][offset:] for side in sides}
            return {f"{side}/{name}": np.ascontiguousarray(table, "<f4") for side, table in tables.items()}
        case choices.Sinusoidal(layout, offset):
            table = functional.sinusoidal(numbers + offset, dim=dim, layout=layout)
        case choices.Raw():
            table = functional.raw_positions(numbers, dim=dim)
        case _:
            table = np.zeros((POSITIONS, dim))
    table = np.ascontiguousarray(np.asarray(table), "<f4")
    return {f"{sides[0]}/{name}": table, **{f"{side}/{name}": f"{sides[0]}/{name}" for side in sides[1:]}}


def quantized(found: Variables) -> dict[str, np.ndarray | str]:
    """Returns variables with matrices in int8, each row with its own scale, as CTranslate2 writes them."""
    result: dict[str, np.ndarray | str] = {}
    for name, x in found.items():
        result[name] = x
        if name.endswith("/weight") and isinstance(x, np.ndarray):
            largest = np.abs(x).max(1)
            scale = np.asarray(127 / np.where(largest == 0, 127, largest), "<f4")
            result[name], result[f"{name}_scale"] = np.rint(x * scale[:, None]).astype("i1"), scale
    return result


def write(folder: pathlib.Path, net: Pure, found: Variables, vocabulary: Vocabulary) -> None:
    """Writes `variables` into an empty folder, as ``model.bin``, with ``config.json`` and the vocabulary.

    Sources of texts come with all tokens around them, such as the end.
    """
    config, pair = net.config, net.model is models.EncoderDecoder
    settings: dict[str, object] = {
        **{f"{name}_token": getattr(vocabulary, name) for name in ("bos", "eos", "unk")},
        "layer_norm_epsilon": config.norm.epsilon,
        "multi_query_attention": config.num_kv_heads not in (None, config.num_heads),
    }
    if pair:
        settings |= {"decoder_start_token": vocabulary.bos, "add_source_bos": False, "add_source_eos": False}
    _write_variables(folder / "model.bin", *_KINDS[net.model], found)
    names = {"config.json": settings, f"{'shared_' * pair}vocabulary.json": list(vocabulary.pieces)}
    for name, content in names.items():
        (folder / name).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def _write_variables(path: pathlib.Path, kind: str, revision: int, found: Variables) -> None:
    """Writes the file in its format of version 6, whose numbers are little-endian."""
    text = lambda name: struct.pack("<H", len(name) + 1) + name.encode() + b"\0"
    arrays = sorted((name, x) for name, x in found.items() if isinstance(x, np.ndarray))
    aliases = sorted((name, x) for name, x in found.items() if isinstance(x, str))
    with path.open("wb") as file:
        file.write(struct.pack("<I", 6) + text(kind) + struct.pack("<II", revision, len(arrays)))
        for name, x in arrays:
            file.write(text(name) + struct.pack(f"<B{x.ndim}I", x.ndim, *x.shape))
            file.write(struct.pack("<BI", _DTYPES[x.dtype.name], x.nbytes) + x.tobytes())
        file.write(struct.pack("<I", len(aliases)))
        for name, first in aliases:
            file.write(text(name) + text(first))


def is_installed() -> bool:
    """Returns True if the package ctranslate2 is installed."""
    return importlib.util.find_spec("ctranslate2") is not None


def difference(
    folder: pathlib.Path, net: Pure, params: Params, vocabulary: Vocabulary, texts: np.ndarray
) -> tuple[str, float]:
    """Returns the version of the package, and the largest difference between its log-probabilities and the model's.

    Args:
      texts: token ids ``[B, T]`` without `bos` and `eos`; each text is both a source and a target.
    """
    import ctranslate2 as library  # pyright: ignore[reportMissingImports]

    pieces = list(vocabulary.pieces)
    names = [[pieces[token] for token in text] for text in texts]
    begin, end = (np.full((len(texts), 1), pieces.index(name)) for name in (vocabulary.bos, vocabulary.eos))
    options = {"device": "cpu", "inter_threads": 1, "intra_threads": 1}
    if net.model is models.EncoderDecoder:
        sources, inputs = [[*text, vocabulary.eos] for text in names], [np.concatenate([texts, end], 1)]
        scored = library.Translator(str(folder), **options).score_batch(sources, names)
    else:
        inputs: list[np.ndarray] = []
        scored = library.Generator(str(folder), **options).score_batch([[vocabulary.bos, *text] for text in names])
    theirs = np.array([one.log_probs for one in scored])  # of the end, too, if there is a source
    with jax.default_matmul_precision("highest"):
        logits = jax.jit(net.apply)(params, *inputs, np.concatenate([begin, texts], 1))
    after = np.concatenate([texts, end], 1)
    own = np.take_along_axis(np.asarray(jax.nn.log_softmax(logits)), after[..., None], -1)[..., 0]
    return importlib.metadata.version("ctranslate2"), float(np.abs(theirs - own[:, : theirs.shape[1]]).max())
