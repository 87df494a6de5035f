"""The search that tasks share: one or several models encode inputs and generate text, in one compiled program."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, Generic, NamedTuple

import jax
import jax.numpy as jnp

from jaxformer import decoding
from jaxformer.decoding import Hypotheses
from jaxformer.errors import ConfigError
from jaxformer.functional.tokens import ArrayT
from jaxformer.models.decoding_model import DecodingModel, StepWeights
from jaxformer.modules.pure import Params, Pure
from jaxformer.reprs import brief
from jaxformer.sharding import Placement
from jaxformer.tasks.config import Beam, Sample, SearchConfig
from jaxformer.tokenizers.base import Tokenizer
from jaxformer.tokenizers.special_tokens import SpecialTokens

Net = Pure[DecodingModel[Any, Any], Any]
"""A model to search with."""

Prepare = Callable[[jax.Array], jax.Array]
"""A hashable function of what a model's `encode` reads."""

_BREAKS = str.maketrans(dict.fromkeys("\0\t\n\v\f\r\x1c\x1d\x1e\x85\u2028\u2029", " "))
"""Characters that end a line or a column; a model with byte tokens can produce them."""


@dataclasses.dataclass(frozen=True)
class Scored:
    """A given text as a model sees it: its tokens, and the log-probability of each, given those before it."""

    tokens: tuple[str, ...]
    token_log_probs: tuple[float, ...]

    @property
    def log_prob(self) -> float:
        """The log-probability of the text."""
        return sum(self.token_log_probs, 0.0)

    @property
    def mean(self) -> float:
        """The mean log-probability of a token; 0 for no tokens."""
        return self.log_prob / max(1, len(self.token_log_probs))


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A generated text with its score; `candidate` puts the text on one line, without tabs."""

    text: str
    score: float
    tokens: tuple[int, ...]
    log_prob: float = 0.0
    """The sum of `token_log_probs`."""
    token_log_probs: tuple[float, ...] = ()
    """The log-probabilities of `tokens`, and of the end token if it was reached; 0 for tokens of a prefix."""


class VocabularyLimits(NamedTuple):
    """Limits on the tokens that a search may choose."""

    forbidden: tuple[int, ...] = ()
    """Tokens that are never chosen."""
    sequences: tuple[tuple[int, ...], ...] = ()
    """Sequences of tokens that are never completed."""
    allowed: tuple[int, ...] = ()
    """The only tokens that may be chosen, including the end token; empty for all tokens."""

    def transforms(self, *, normalized: bool) -> list[decoding.Transform]:
        """Returns the transforms that enforce these limits.

        Args:
          normalized: see `decoding.forbid`; the probability of other tokens is always shared among a shortlist's.
        """
        transforms: list[decoding.Transform] = []
        if self.forbidden:
            transforms.append(decoding.forbid(self.forbidden, normalized=normalized))
        if self.sequences:
            transforms.append(decoding.forbid_sequences(self.sequences, normalized=normalized))
        if self.allowed:
            transforms.append(decoding.shortlist(jnp.asarray(self.allowed)))
        return transforms


def candidate(hypotheses: Hypotheses, rank: int, tokenizer: Tokenizer) -> Candidate:
    """Returns hypothesis `rank` of an input as text."""
    length = hypotheses.lengths[rank]
    ids = hypotheses.tokens[rank, :length]
    if length and ids[-1] == tokenizer.special.eos:
        ids = ids[:-1]
    text = tokenizer.decode(ids.tolist()).translate(_BREAKS)
    score, log_prob = float(hypotheses.scores[rank]), float(hypotheses.log_probs[rank])
    return Candidate(
        text, score, tuple(ids.tolist()), log_prob, tuple(hypotheses.token_log_probs[rank, :length].tolist())
    )


class Sources(NamedTuple, Generic[ArrayT]):
    """The inputs of a search, and the arguments that differ between them."""

    inputs: Any  # what the model's `encode` reads, [B, ...]: tokens or images; None for a language model
    max_lengths: ArrayT  # int32 [B]: the maximum number of output tokens
    min_lengths: ArrayT  # int32 [B]: the minimum, end token included
    prefix: ArrayT  # int32 [B, P]: the first tokens of each output
    prefix_lengths: ArrayT  # int32 [B]
    numbers: ArrayT  # int32 [B, M]: folded into the sampling key: the input's number, and perhaps the draw's

    __repr__ = brief


class Weights(NamedTuple):
    """The parameters of a model."""

    params: Params
    steps: StepWeights | None = None
    """The weights that steps read (`models.Decoder.step_weights`), computed once; if None, they are computed in each
    search."""


class Options(NamedTuple):
    """The static arguments of a search: a program is compiled for each value."""

    nets: tuple[Net, ...]
    decode: SearchConfig
    special: SpecialTokens
    num_hypotheses: int
    max_length: int
    limits: VocabularyLimits = VocabularyLimits()
    is_open: bool = False
    """True for a language model: the prefix begins the text."""
    ends: tuple[int, ...] | None = None
    """The tokens that end a text; None for the vocabulary's end token."""
    prepare: Prepare | None = None
    """A function that the program applies to the inputs before the model encodes them."""


@functools.partial(jax.jit, static_argnums=(0, 1))
def search(
    options: Options,
    placement: Placement | None,
    weights: tuple[Weights, ...],
    sources: Sources[jax.Array],
    key: jax.Array,
) -> Hypotheses:
    """Returns the hypotheses, replicated on every device; each device searches its own rows."""
    run = functools.partial(_search, options, placement is None or placement.num_batch_shards == 1)
    if placement is None:
        return run(weights, sources, key)
    return jax.lax.with_sharding_constraint(placement.with_axis_rules(run)(weights, sources, key), placement.replicated)


def traced(
    options: Options,
    trace: decoding.BeamTrace,
    weights: tuple[Weights, ...],
    sources: Sources[jax.Array],
    key: jax.Array,
) -> Hypotheses:
    """Searches with a beam, step by step on one device, and records what each step considered."""
    return _search(options, True, weights, jax.tree.map(jnp.asarray, sources), key, trace)


def weights_of(
    nets: tuple[Net, ...], params: tuple[Params, ...], placement: Placement | None = None
) -> tuple[Weights, ...]:
    """Returns the parameters of each model; on one device, its step weights too, which all searches then share."""
    alone = on_one_device(placement) and not _are_stacked(nets)
    pairs = zip(nets, params, strict=True)
    return tuple(Weights(own, _step_weights(net, own) if alone else None) for net, own in pairs)


def on_one_device(placement: Placement | None) -> bool:
    """Returns True if no other device takes part in a search."""
    return placement is None or placement.mesh.size == 1


@functools.partial(jax.jit, static_argnums=0)
def _step_weights(net: Net, params: Params) -> StepWeights | None:
    return net.bind(params).step_weights()


def _search(
    options: Options,
    alone: bool,
    weights: tuple[Weights, ...],
    sources: Sources[jax.Array],
    key: jax.Array,
    trace: decoding.BeamTrace | None = None,
) -> Hypotheses:
    """Searches; `alone` is True if no other device shares the inputs, so that complete rows may be dropped."""
    decode, special, rule = options.decode, options.special, options.decode.finder
    run = _start(options, weights, sources)
    step = run.step if alone else lambda tokens, state: run.step(tokens, state)
    has_room = getattr(run.state, "capacity", None) is not None
    limits = decoding.Limits(
        max_length=options.max_length,
        bos=None if options.is_open else special.bos,
        eos=_ends(options),
        pad=special.pad,
        prefix=decoding.Prefix(sources.prefix, sources.prefix_lengths, run.read) if sources.prefix.shape[1] else None,
        max_lengths=sources.max_lengths,
        forced_end=None if decode.forced_end == "scored" else decode.forced_end,  # "free" in sampling
        capacities=_capacities(options, sources) if has_room else (),
    )
    transforms = _rules(options, sources)
    if isinstance(rule, Sample):
        keys = jax.vmap(lambda numbers: functools.reduce(jax.random.fold_in, numbers, key))(sources.numbers)
        transforms += sampling_transforms(rule)
        found = decoding.sample(step, run.state, limits, key=keys, transforms=transforms)
        return decoding.rerank(found, found.scores)
    stopping = rule.stopping if rule.patience == 1 else decoding.Patience(rule.patience)
    return decoding.beam_search(
        step,
        run.state,
        limits,
        beam_size=rule.beam_size,
        length_penalty=normalization(rule, count_prefix=not options.is_open),
        stopping="first" if rule.beam_size == 1 else stopping,  # another would continue after the greedy text
        transforms=transforms,
        trace=trace,
    )


def normalization(rule: Beam, *, count_prefix: bool) -> decoding.Normalization:
    """Returns the formula of the scores of a beam; the length of a continuation does not count its prompt."""
    if rule.normalization == "gnmt":
        return decoding.GNMTPenalty(rule.length_penalty, count_prefix=count_prefix)
    count_eos = rule.normalization == "tokens"
    return decoding.LengthPenalty(rule.length_penalty, count_eos=count_eos, count_prefix=count_prefix)


def _capacities(options: Options, sources: Sources[jax.Array]) -> tuple[int, ...]:
    """Returns the numbers of positions for which caches have room in turn.

    The last one is the limit. Most texts end long before it, so a batch begins with half of the room, or less if there
    is much. A few rows need little attention, and fewer programs compile faster.
    """
    limit, batch = options.max_length - options.is_open, len(sources.numbers)  # a language model reads no last token
    least = max(sources.prefix.shape[1], 1)
    found = [max(1, limit)]
    while batch >= 8 and limit >= 24 and (half := -(-found[0] // 2)) >= least and (len(found) == 1 or half >= 128):
        found.insert(0, half)
    return tuple(found)


def _ends(options: Options) -> tuple[int, ...]:
    return (options.special.eos,) if options.ends is None else options.ends


def _rules(options: Options, sources: Sources[jax.Array]) -> list[decoding.Transform]:
    """Returns the transforms that remove tokens from a search."""
    decode, special, rule = options.decode, options.special, options.decode.finder
    loses = isinstance(rule, Sample) or not rule.renormalize  # `decoding.for_sampling` renormalizes
    rules: list[decoding.Transform] = []
    if decode.repetition_penalty != 1:  # Hugging Face counts the token that a decoder begins with
        before = () if options.is_open else (special.bos,)
        of_beam = isinstance(rule, Beam) and rule.beam_size > 1
        rules.append(decoding.repetition_penalty(decode.repetition_penalty, before=before, normalized=of_beam))
    if decode.has_minimum:
        rules.append(decoding.min_length(sources.min_lengths, eos=_ends(options), normalized=loses))
    rules += options.limits.transforms(normalized=loses)
    if decode.no_repeat_ngram_size:
        rules.append(decoding.no_repeat_ngram(decode.no_repeat_ngram_size, normalized=loses))
    if not loses:  # the search itself removes them after log-softmax
        rules.append(decoding.forbid(sorted({special.pad, special.bos} - {*_ends(options)}), normalized=False))
    return rules


class _Run(NamedTuple):
    """A model, or an ensemble as one model, at the start of a search."""

    step: decoding.Step[Any]
    """Complete rows may leave its batch."""
    state: Any
    read: Any
    """Reads a prefix in one pass; None to read it step by step."""


def _are_stacked(nets: tuple[Net, ...]) -> bool:
    """Returns True for several models of equal shapes, which are computed together."""
    return len(nets) > 1 and len(set(nets)) == 1


def _start(options: Options, weights: tuple[Weights, ...], sources: Sources[jax.Array]) -> _Run:
    """Returns the start of a search with one or several models."""
    if options.decode.coverage_penalty:
        return _covering(options, weights[0], sources)
    average = options.decode.average
    if _are_stacked(options.nets):
        return _stacked(options, jax.tree.map(lambda *leaves: jnp.stack(leaves), *weights), sources)
    runs = [_one(net, options, own, sources) for net, own in zip(options.nets, weights, strict=True)]
    if len(runs) == 1:
        return runs[0]

    def read(tokens: jax.Array, state: decoding.EnsembleState, lengths: jax.Array) -> decoding.EnsembleState:
        states = zip(runs, state.states, strict=True)
        return decoding.EnsembleState(tuple(run.read(tokens, own, lengths) for run, own in states))

    return _Run(
        decoding.ensemble([run.step for run in runs], average=average),
        decoding.EnsembleState(tuple(run.state for run in runs)),
        read,
    )


def _begun(net: Net, options: Options, weights: Weights, sources: Sources[jax.Array]) -> Any:
    """Returns the encoder's memory of the inputs, and the model's context and state at the start."""
    model: Any = net.bind(weights.params)
    length = _capacities(options, sources)[0]
    start = functools.partial(model.start, beam_size=options.num_hypotheses, length=length)
    if weights.steps is not None:
        start = functools.partial(start, weights=weights.steps)
    if options.decode.cache_dtype == "bfloat16":
        if not net.config.has_cache:
            raise ConfigError("cache_dtype needs a Transformer: a recurrent decoder keeps no keys and values")
        start = functools.partial(start, cache_dtype=jnp.bfloat16)
    if options.is_open:
        return None, *start(batch_size=len(sources.prefix))
    memory = model.encode(options.prepare(sources.inputs) if options.prepare else sources.inputs)
    return memory, *start(memory)


def _one(net: Net, options: Options, weights: Weights, sources: Sources[jax.Array]) -> _Run:
    model = net.bind(weights.params)
    _, context, state = _begun(net, options, weights, sources)
    read = lambda tokens, state, lengths: model.prefill(tokens, state, context, lengths=lengths)[1]
    return _Run(decoding.ContextStep(model.step, context), state, read)


def _stacked(options: Options, weights: Weights, sources: Sources[jax.Array]) -> _Run:
    """Returns the start of models of equal shapes, whose parameters have a leading dimension of models."""
    net, params = options.nets[0], weights.params
    contexts, states = jax.vmap(lambda own: _begun(net, options, own, sources)[1:])(weights)

    def step(one: tuple[Params, Any], tokens: jax.Array, state: Any) -> Any:
        own, context = one
        model = net.bind(own)
        return model.step(tokens, state, context)

    def read(tokens: jax.Array, state: decoding.StackedState, lengths: jax.Array) -> decoding.StackedState:
        def prefill(own: Params, context: Any, state: Any) -> Any:
            model = net.bind(own)
            return model.prefill(tokens, state, context, lengths=lengths)[1]

        return decoding.StackedState(jax.vmap(prefill)(params, contexts, state.states))

    def take(models: tuple[Params, Any], rows: jax.Array) -> tuple[Params, Any]:
        return models[0], jax.vmap(lambda context: context.take(rows))(models[1])

    models, average = (params, contexts), options.decode.average
    together = decoding.stacked_ensemble(step, models, average=average, take=take)
    return _Run(together, decoding.StackedState(states), read)


def _covering(options: Options, weights: Weights, sources: Sources[jax.Array]) -> _Run:
    """Returns the start of a model whose steps sum up the attention that each position of the input has received."""
    if not options.nets[0].config.has_attention:
        raise ConfigError("coverage_penalty needs attention, and this model has model.attention none")
    model: Any = options.nets[0].bind(weights.params)
    memory, context, state = _begun(options.nets[0], options, weights, sources)
    valid = memory.valid
    if valid is None:
        valid = jnp.ones(memory.states.shape[:2], bool)

    def step(tokens: jax.Array, state: decoding.CoverageState[Any], context: Any) -> Any:
        logits, weights, inner = model.attending_step(tokens, state.state, context)
        return logits, state.attending(weights, inner)

    start = decoding.CoverageState.start(state, valid, penalty=options.decode.coverage_penalty)
    return _Run(decoding.ContextStep(step, context), start, None)


def sampling_transforms(rule: Sample) -> list[decoding.Transform]:
    """Returns the transforms for the sampling settings, in the order of Hugging Face's warpers."""
    transforms: list[decoding.Transform] = []
    if rule.temperature != 1:
        transforms.append(decoding.temperature(rule.temperature))
    if rule.top_k:
        transforms.append(decoding.top_k(rule.top_k))
    if rule.top_p < 1:
        transforms.append(decoding.top_p(rule.top_p))
    if rule.min_p:
        transforms.append(decoding.min_p(rule.min_p))
    return transforms
