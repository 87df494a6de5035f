"""The compiled part of translation: encoding, and a search or draws by one model or several."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxformer import decoding, models
from jaxformer.data.special_tokens import SpecialTokens
from jaxformer.decoding import Hypotheses
from jaxformer.modules.pure import Params, Pure
from jaxformer.sharding import Placement
from jaxformer.tasks.search import sampling_transforms
from jaxformer.tasks.translation.config import DecodeConfig

Net = Pure[models.EncoderDecoder, models.EncoderDecoderConfig] | Pure[models.Seq2Seq, models.Seq2SeqConfig]
"""A translation model; both kinds have the same methods."""


class Sources(NamedTuple):
    """The sentences of a search, with what differs between them."""

    tokens: Any  # int32 [B, S]
    valid: Any  # Bool [B, S]
    max_lengths: Any  # int32 [B]: the most tokens of a translation
    min_lengths: Any  # int32 [B]: the fewest, the end included
    prefix: Any  # int32 [B, P]: the first tokens of each translation
    prefix_lengths: Any  # int32 [B]
    numbers: Any  # int32 [B]: the sentences' numbers, for draws


class Options(NamedTuple):
    """The static part of a search: a program is compiled for each value."""

    nets: tuple[Net, ...]
    decode: DecodeConfig
    special: SpecialTokens
    num_hypotheses: int
    max_length: int


def static(decode: DecodeConfig) -> DecodeConfig:
    """Returns settings without those that change no program."""
    return dataclasses.replace(decode, seed=0, batch_size=1, validation_sentences=0)


@functools.partial(jax.jit, static_argnums=(0, 1))
def search(
    options: Options, placement: Placement | None, params: tuple[Params, ...], sources: Sources, key: jax.Array
) -> Hypotheses:
    """Returns the hypotheses, replicated on every device; each device searches for its rows."""
    run = functools.partial(_search, options, placement is None or placement.ways == 1)
    if placement is None:
        return run(params, sources, key)
    return jax.lax.with_sharding_constraint(placement.under(run)(params, sources, key), placement.replicated)


@functools.partial(jax.jit, static_argnums=(0, 1))
def pair_log_probs(
    nets: tuple[Net, ...],
    average: decoding.Average,
    params: tuple[Params, ...],
    source: jax.Array,
    valid: jax.Array,
    target: jax.Array,
    labels: jax.Array,
) -> jax.Array:
    """Returns the log-probability ``[B, T]`` of each label after the target tokens up to its place."""
    logits = [net.apply(own, source, target, source_valid=valid) for net, own in zip(nets, params, strict=True)]
    scores = jnp.stack([x.astype(jnp.float32) for x in logits])
    mean = jax.nn.log_softmax(decoding.mean_log_probs(scores, average))
    return jnp.take_along_axis(mean, labels[..., None], 2)[..., 0]


def _search(options: Options, alone: bool, params: tuple[Params, ...], sources: Sources, key: jax.Array) -> Hypotheses:
    """Searches; `alone` says that no other device shares the sentences, so that complete ones may leave the batch."""
    decode, special = options.decode, options.special
    run = _start(options, params, sources)
    least = decode.min_length or decode.min_ratio
    transforms = [decoding.min_length(sources.min_lengths, eos=special.eos)] if least else []
    transforms += [decoding.no_repeat(decode.no_repeat)] if decode.no_repeat else []
    prefix = decoding.Prefix(sources.prefix, sources.prefix_lengths, run.read) if sources.prefix.shape[1] else None
    given: dict[str, Any] = {
        "max_length": options.max_length,
        "bos": special.bos,
        "eos": special.eos,
        "pad": special.pad,
        "max_lengths": sources.max_lengths,
        "prefix": prefix,
        # A forced end is not drawn, and what a filter leaves may lack it.
        "forced_end": "free" if decode.draws and decode.forced_end == "scored" else decode.forced_end,
        "narrow": run.narrow if alone else None,
    }
    if decode.draws:
        keys = jax.vmap(jax.random.fold_in, (None, 0))(key, sources.numbers)
        transforms += sampling_transforms(decode)
        found = decoding.sample(run.step, run.state, key=keys, transforms=transforms, **given)
        return decoding.rerank(found, found.scores)
    penalties = {
        "tokens": lambda: decoding.LengthPenalty(decode.length_penalty),
        "words": lambda: decoding.LengthPenalty(decode.length_penalty, count_eos=False),
        "gnmt": lambda: decoding.GNMTPenalty(decode.length_penalty),
    }
    return decoding.beam_search(
        run.step,
        run.state,
        beam_size=options.num_hypotheses,
        length_penalty=penalties[decode.normalization](),
        coverage_penalty=decode.coverage_penalty,
        stopping=decoding.Patience(decode.patience) if decode.stopping == "patience" else decode.stopping,
        transforms=transforms,
        **given,
    )


class _Run(NamedTuple):
    """A model, or several as one, at the start of a search."""

    step: decoding.Step[Any]
    state: Any
    read: Any
    """Reads a prefix at once; None if it takes steps."""
    narrow: Callable[[jax.Array], decoding.Step[Any]]


def _start(options: Options, params: tuple[Params, ...], sources: Sources) -> _Run:
    """Returns the start of a search by one model or by several."""
    if options.decode.coverage_penalty:
        return _covering(options, params[0], sources)
    average = options.decode.average
    if len(options.nets) > 1 and len(set(options.nets)) == 1:  # of equal shapes: computed as one
        return _stacked(options, jax.tree.map(lambda *leaves: jnp.stack(leaves), *params), sources)
    runs = [_one(net, options, own, sources) for net, own in zip(options.nets, params, strict=True)]
    if len(runs) == 1:
        return runs[0]

    def read(tokens: jax.Array, state: decoding.EnsembleState, lengths: jax.Array) -> decoding.EnsembleState:
        states = zip(runs, state.states, strict=True)
        return decoding.EnsembleState(tuple(run.read(tokens, own, lengths) for run, own in states))

    return _Run(
        decoding.ensemble([run.step for run in runs], average=average),
        decoding.EnsembleState(tuple(run.state for run in runs)),
        read,
        lambda sentences: decoding.ensemble([run.narrow(sentences) for run in runs], average=average),
    )


def _begun(net: Net, options: Options, params: Params, sources: Sources) -> Any:
    """Returns the context and the state of a model that has encoded the sources."""
    model: Any = net.bind(params)
    memory = model.encode(sources.tokens, source_valid=sources.valid)
    return model.start(memory, beam_size=options.num_hypotheses, length=options.max_length)


def _one(net: Net, options: Options, params: Params, sources: Sources) -> _Run:
    model: Any = net.bind(params)
    context, state = _begun(net, options, params, sources)
    step_in = lambda context: lambda tokens, state: model.step(tokens, state, context)
    read = lambda tokens, state, lengths: model.prefill(tokens, state, context, lengths=lengths)[1]
    return _Run(step_in(context), state, read, lambda sentences: step_in(context.take(sentences)))


def _stacked(options: Options, params: Params, sources: Sources) -> _Run:
    """Returns the start of models of equal shapes, whose parameters begin with a dimension of models."""
    net = options.nets[0]
    contexts, states = jax.vmap(lambda own: _begun(net, options, own, sources))(params)

    def step(given: Any, tokens: jax.Array, state: Any) -> Any:
        own, context = given
        model: Any = net.bind(own)
        return model.step(tokens, state, context)

    def read(tokens: jax.Array, state: decoding.StackedState, lengths: jax.Array) -> decoding.StackedState:
        prefill = lambda own, context, state: _prefilled(net, own, context, tokens, state, lengths)
        return decoding.StackedState(jax.vmap(prefill)(params, contexts, state.states))

    def narrow(sentences: jax.Array) -> decoding.Step[Any]:
        few = jax.vmap(lambda context: context.take(sentences))(contexts)
        return decoding.stacked_ensemble(step, (params, few), average=options.decode.average)

    together = decoding.stacked_ensemble(step, (params, contexts), average=options.decode.average)
    return _Run(together, decoding.StackedState(states), read, narrow)


def _prefilled(net: Net, params: Params, context: Any, tokens: jax.Array, state: Any, lengths: jax.Array) -> Any:
    model: Any = net.bind(params)
    return model.prefill(tokens, state, context, lengths=lengths)[1]


def _covering(options: Options, params: Params, sources: Sources) -> _Run:
    """Returns the start of a model whose steps keep the attention that each source token has received."""
    model: Any = options.nets[0].bind(params)
    context, state = _begun(options.nets[0], options, params, sources)

    def step_in(context: Any) -> decoding.Step[Any]:
        def step(tokens: jax.Array, state: decoding.CoverageState[Any]) -> Any:
            logits, weights, inner = model.attending_step(tokens, state.state, context)
            return logits, decoding.CoverageState(inner, state.attended + weights)

        return step

    start = decoding.CoverageState.start(state, sources.valid)
    return _Run(step_in(context), start, None, lambda sentences: step_in(context.take(sentences)))
