"""Runs as Hugging Face folders, which transformers and the programs that serve its models read.

The token with which a decoder begins is written as these programs assume it. Those that read a Pegasus or T5, such as
CTranslate2, begin with the padding token, whatever the settings say. Those that read a Marian begin with a vector of
zeros, and take the last token for padding.
"""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import types
from collections.abc import Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxformer import models
from jaxformer.errors import ConfigError
from jaxformer.files import JsonObject, check_new_folder, creating_folder, local_path
from jaxformer.interop import equivalent
from jaxformer.interop.equivalent import Fitted
from jaxformer.interop.pretrained import write
from jaxformer.interop.tensors import read_json
from jaxformer.modules.pure import Params, Pure, pure
from jaxformer.reprs import brief
from jaxformer.tasks import registry, restore, rundir
from jaxformer.tasks.base import Say
from jaxformer.tasks.config import TuneConfig
from jaxformer.tasks.language_model.config import LanguageModelingConfig
from jaxformer.tasks.masked_language_model.config import MaskedLanguageModelingConfig
from jaxformer.tasks.pretrained import generation_config
from jaxformer.tasks.pretrained.conversion import decoder_with_rows, with_rows
from jaxformer.tasks.pretrained.languages import languages_of, with_languages
from jaxformer.tasks.text import run_tokenizer
from jaxformer.tasks.translation.config import TranslationConfig
from jaxformer.tokenizers.base import Tokenizer
from jaxformer.tokenizers.pretrained import PretrainedTokenizer, PublishedTokenizer
from jaxformer.tokenizers.special_tokens import SpecialTokens
from jaxformer.tokenizers.tokenizer_json import TOKENIZER, tokenizer_files


def export(
    run: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    checkpoint: str = "best",
    family: str = "",
    mesh: str = "",
    say: Say = lambda text: None,
) -> str:
    """Writes a run as a new folder with ``config.json``, weights in safetensors, and the tokenizer.

    The logits are the same, up to rounding: see `interop.equivalent`. Tables have only the rows of the vocabulary, so
    the probability of the padding rows goes to the others. Adapters are merged into their matrices.

    Returns the ``model_type``.

    Args:
      checkpoint: see `restore.load`.
      family: the ``model_type`` to write; by default the first that can express the model.
      mesh: the devices that share the parameters.
      say: receives a line about the settings of the search that the folder cannot hold, if there are any.

    Raises:
      ConfigError: the folder exists, no family can express the model, its attention is a user's own, or the tokenizer's
        files cannot express the form of the text.
    """
    out = local_path(out)
    check_new_folder(out)
    run, config, tokenizer, files, net, params = load_run(run, checkpoint, mesh)
    found = _fitted(tokenizer, net, params, family, rundir.encoder_family(run))
    special, start = tokenizer.special, tokenizer.start
    settings: JsonObject = _ids(special, start)
    generation, ids, never = dict(settings), dict(settings), dict[str, int]()
    if isinstance(config, TranslationConfig):
        languages = languages_of(config, tokenizer)
        given = Translator(found, special, start, special.bos, files, tokenizer.tags if any(languages) else {})
        found, special, start, first, files, tags = with_start_of_family(given)
        settings = _ids(special, start) | {"decoder_start_token_id": first}
        generation = ids = dict(settings)
        longest = min(found.net.config.length_limit or generation_config.MOST, generation_config.MOST) - 1
        never = generation_config.special_words(config.decode, tokenizer)
        begin = start or tuple(tags[code] for code in languages[1:] if code in tags)
        generation |= generation_config.to_generation(config.decode, special, begin, longest, never.values())
    elif isinstance(config, LanguageModelingConfig):
        generation |= generation_config.to_text_generation(config.decode)
        if found.net.config.length_limit is None:  # otherwise transformers takes its default, up to 131,072
            before = config.model.max_positions * (config.data.tokenizer == "pretrained")  # or of training here
            settings["max_position_embeddings"] = max(config.data.length, before)
    if rundir.is_pretrained(run):  # otherwise its parameters were trained in float32
        settings["dtype"] = read_json(run / "provenance.json").get("dtype", "float32")
    source = run / rundir.GENERATION
    if source.exists() and not isinstance(config, MaskedLanguageModelingConfig) and special == tokenizer.special:
        before = read_json(source)  # of the folder that the run was converted from
        if _describes(before, config, tokenizer):
            language = {name: x for name, x in generation.items() if name == "forced_bos_token_id" and tokenizer.tags}
            generation = ids | before | language
    files = dict(files)
    if not isinstance(config, MaskedLanguageModelingConfig):
        files[rundir.GENERATION] = (json.dumps(generation, indent=2) + "\n").encode()
    with creating_folder(out, mode=0o777) as temporary:
        write(temporary, found.net, found.params, family=found.family, settings=settings)
        for name, content in files.items():
            (temporary / name).write_bytes(content)
    if not isinstance(config, MaskedLanguageModelingConfig):
        say_lost(generation_config.without_counterpart(config.decode, never), "transformers", say)
    return found.family


def say_lost(lost: Mapping[str, object], program: str, say: Say) -> None:
    """Reports the settings of a search that a program lacks, if there are any."""
    if lost:
        named = ", ".join(f"decode.{name} {value}" for name, value in lost.items())
        say(f"the folder does not have {named}, which {program} lacks; texts that they end or change differ")


class Loaded(NamedTuple):
    """A run that other programs may read."""

    run: pathlib.Path
    config: LanguageModelingConfig | MaskedLanguageModelingConfig | TranslationConfig
    tokenizer: Tokenizer
    files: Mapping[str, bytes]
    """The files of the tokenizer."""
    net: Pure
    """The model, whose tables have exactly the rows of the vocabulary."""
    params: Params
    """Its parameters, with adapters merged."""

    __repr__ = brief


def load_run(run: str | os.PathLike[str], checkpoint: str, mesh: str) -> Loaded:
    """Returns a run as other programs may read it; see `export`."""
    run = local_path(run)
    config = registry.read_config(run)
    if not isinstance(config, LanguageModelingConfig | MaskedLanguageModelingConfig | TranslationConfig):
        raise ConfigError(f"{run} is a run of {config.task}; language models, masked ones and translators are exported")
    if config.attention:
        raise ConfigError(f"{run} has an attention of its own, {config.attention}, which other programs do not have")
    tokenizer, masked = run_tokenizer(run), isinstance(config, MaskedLanguageModelingConfig)
    frame = "both" if masked else "end" if isinstance(config, TranslationConfig) else ""
    files = tokenizer_files(tokenizer, frame=frame, mask=masked, languages=languages_of(config, tokenizer))
    params, _ = restore.load_params(run, checkpoint, mesh)
    plain = dataclasses.replace(config, tune=TuneConfig())  # adapters are merged
    net = restore.run_setup(run, plain, mesh).network.net
    return Loaded(run, config, tokenizer, files, *_with_rows_of(tokenizer, net, params))


def _fitted(tokenizer: Tokenizer, net: Pure, params: Params, family: str, encoder: str) -> equivalent.Fitted:
    """Returns a model of a family, which transformers reads with this tokenizer.

    Args:
      encoder: the family of an encoder that was converted without a head.
    """
    if encoder:
        return Fitted(family or encoder, pure(models.make_encoder, net.config, **dict(net.parts)), params["encoder"])
    found = equivalent.fitted(net, params, family=family)
    if found.family == "qwen2" and not isinstance(tokenizer, PretrainedTokenizer):
        if family:
            raise ConfigError(
                "transformers reads any qwen2 by the rules of Qwen's vocabulary: leave out --family qwen2"
            )
        found = equivalent.fitted(net, params, family="llama")
    if found.family == "roberta" and tokenizer.special.pad + 1 != found.net.config.positions.offset:
        raise ConfigError(
            f"the positions of a roberta start at {tokenizer.special.pad + 1}, the id of its padding token plus 1; "
            f"those of this model start at {found.net.config.positions.offset}"
        )
    return found


def _describes(
    generation: JsonObject, config: LanguageModelingConfig | TranslationConfig, tokenizer: Tokenizer
) -> bool:
    """Returns True if the settings that a converted run came from describe its search, which may have been changed."""
    if isinstance(config, LanguageModelingConfig):
        return generation_config.from_text_generation(generation, tokenizer)[0] == config.decode
    if isinstance(tokenizer, PublishedTokenizer) and tokenizer.tags:
        _, generation = with_languages(tokenizer, generation)
    kept, forbidden = generation_config.without_special_words(generation, tokenizer)
    decode = generation_config.from_generation(kept, tokenizer.special, tokenizer.start)
    return dataclasses.replace(decode, forbid=forbidden or decode.forbid) == config.decode


def _ids(special: SpecialTokens, start: tuple[int, ...]) -> dict[str, int]:
    """Returns the ids of special tokens as settings."""
    begin = start[0] if start else special.bos
    return {"pad_token_id": special.pad, "bos_token_id": begin, "eos_token_id": special.eos}


def _with_rows_of(tokenizer: Tokenizer, net: Pure, params: Params) -> tuple[Pure, Params]:
    """Returns a model whose tables have exactly the rows of the vocabulary, without padding rows."""
    size = tokenizer.vocab_size
    if net.model is models.LanguageModel:
        decoder = decoder_with_rows(params["decoder"], size)
        settings: JsonObject = {"vocab_size": size}
        if "output_bias" in decoder:
            decoder["output_bias"] = decoder["output_bias"][:size]
            if not decoder["output_bias"].any():  # of the padding rows of the table
                del decoder["output_bias"]
                settings["output_bias"] = False
        params = params | {"decoder": decoder}
    elif net.model is models.MaskedLanguageModel:
        mask = None
        if isinstance(tokenizer, PretrainedTokenizer) and (name := tokenizer.mask):
            mask = tokenizer.id_of(name)
        embeddings, rows = params["encoder"]["embeddings"], size + (mask is None)
        cut = with_rows(embeddings, rows)
        if mask is not None:  # here it is the first after the vocabulary
            vector = embeddings["tokens"]["table"][size]
            cut["tokens"] = {"table": cut["tokens"]["table"].at[mask].set(vector)}
        params = params | {"encoder": params["encoder"] | {"embeddings": cut}}
        params["output_bias"] = params["output_bias"][:rows]
        settings = {"vocab_size": rows}
    else:
        return net, params
    return pure(net.model, dataclasses.replace(net.config, **settings), **dict(net.parts)), params


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
    tags: Mapping[str, int] = types.MappingProxyType({})
    """The tokens for languages."""


def with_start_of_family(found: Translator) -> Translator:
    """Returns a translator whose decoder begins with the token of its family.

    The vectors of padding and of the run's own start are exchanged, so probabilities stay the same: a search chooses
    neither, and an encoder sees neither.
    """
    (family, _, params), pad, bos = found.model, found.special.pad, found.special.bos
    if family in ("mbart", "m2m_100") and not found.tags:
        raise ConfigError(
            f"the decoder of an {family} begins with the code of a language, which the texts of the run lack"
        )
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
