"""The limits of every search: where sequences begin and end, how long they may be, and their forced first tokens."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Generic, NamedTuple, Protocol, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from jaxformer.axes import has_known_values
from jaxformer.decoding.api import S, check_start, check_state, ends_of
from jaxformer.decoding.transforms import (
    Forbid,
    ForcedEnd,
    ForceEnd,
    History,
    Transform,
    Transforms,
    as_transforms,
    for_sampling,
)
from jaxformer.dims import check_rank
from jaxformer.errors import ConfigError
from jaxformer.reprs import brief


class ReadPrefix(Protocol[S]):
    """Maps tokens ``[B, K, P]``, a state and lengths to the state after these tokens, read in one pass.

    The lengths, ``int32 [B, K]``, are from 0 to P; the tokens of a hypothesis after its length are padding.
    """

    def __call__(self, tokens: jax.Array, state: S, lengths: jax.Array, /) -> S: ...


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Prefix(Generic[S]):
    """Forced first tokens of the sequences of each row.

    They are part of `Hypotheses.tokens` and count in lengths and limits, but not in log-probabilities. An `eos` among
    them does not end a sequence. A row whose prefix reaches its limit gets no further token.
    """

    tokens: jax.Array
    """``int32 [B, P]``"""
    lengths: jax.Array | None = None
    """The number of tokens of each prefix, ``int [B]``; P by default."""
    read: ReadPrefix[S] | None = dataclasses.field(default=None, metadata={"static": True})
    """Computes the state after a prefix in one pass, such as
    ``lambda tokens, state, lengths: model.prefill(tokens, state, context, lengths=lengths)[1]``; by default the search
    takes one step for each token."""

    __repr__ = brief


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class Limits(Generic[S]):
    """The beginning, the end and the length of sequences; a pytree whose leaves are `prefix` and `max_lengths`.

    Raises:
      ConfigError: `max_length` is below 1, `bos` is negative, or `forced_end` is unknown.

    >>> Limits(max_length=50, bos=1, eos=[2, 3]).eos
    (2, 3)
    """

    max_length: int = dataclasses.field(metadata={"static": True})
    """The maximum number of tokens, `eos` and prefix included."""
    bos: int | None = dataclasses.field(metadata={"static": True})
    """The token before the first, never chosen unless it is `eos`; None if the prefix, which then has at least one
    token, begins the sequence. It may have no score, if a model only reads it, so it is not compared with V."""
    eos: int | Sequence[int] | None = dataclasses.field(metadata={"static": True})
    """The token that ends a sequence, or several; None if no token does: only the limit ends a sequence."""
    pad: int | None = dataclasses.field(default=None, metadata={"static": True})
    """The token that fills the positions after the end, never chosen unless it is `eos`, as for GPT-2. By default they
    are filled with 0, which may also be chosen."""
    prefix: Prefix[S] | Int[Array, "B P"] | None = None
    """The first tokens of each sequence; a `Prefix` if their lengths differ, or to read them in one pass."""
    max_lengths: Int[Array, " B"] | None = None
    """The maximum number of tokens of each row, at most `max_length`."""
    forced_end: ForcedEnd | None = dataclasses.field(default=None, metadata={"static": True})
    """The log-probability of an `eos` that is forced at the length limit. "scored": the model's, or the lowest finite
    number if a transform has removed `eos`. "free": 0. "never": no `eos` is forced. By default "scored", but "free" in
    `sample`, because an `eos` that is forced is not drawn."""
    capacities: tuple[int, ...] = dataclasses.field(default=(), metadata={"static": True})
    """The numbers of positions for which the state has room in turn, ascending. Attention then reads less of a cache
    that is mostly empty. The state has been started with the first, and the model must have positions for the last."""

    __repr__ = brief

    def __post_init__(self) -> None:
        if isinstance(self.eos, list | np.ndarray | jax.Array):
            object.__setattr__(self, "eos", ends_of(self.eos))
        if isinstance(self.bos, int | np.integer) and self.bos < 0:
            raise ConfigError(f"bos must be at least 0, got {self.bos}")
        if self.max_length < 1:
            raise ConfigError(f"max_length must be at least 1, got {self.max_length}")
        if self.forced_end not in (None, *get_args(ForcedEnd)):
            raise ConfigError(f"forced_end must be one of {', '.join(get_args(ForcedEnd))}, got {self.forced_end!r}")

    @property
    def ends(self) -> tuple[int, ...]:
        """The tokens that end a sequence: one, several, or none."""
        return ends_of(self.eos)

    @property
    def filler(self) -> int:
        """The token that fills the positions after the end of a sequence: `pad`, or 0 without one."""
        return self.pad or 0


class Start(NamedTuple, Generic[S]):
    """The beginning of a search: the forced tokens, and the state before its first step."""

    tokens: jax.Array  # int32 [B, K, T]: the prefix, then pad
    forced: jax.Array  # int32 [B]: the number of tokens of the prefix
    lengths: jax.Array  # int32 [B]: the number of tokens before the one that the next step chooses
    last: jax.Array  # int32 [B, K]: the token that the next step takes
    max_lengths: jax.Array  # int32 [B]: the maximum number of tokens, eos included; no prefix is longer
    state: S

    def history(self) -> History:
        """Returns the forced tokens of all rows as a history."""
        lengths = jnp.broadcast_to(self.forced[:, None], self.last.shape)
        return History(self.tokens, lengths, jnp.arange(lengths.shape[0], dtype=jnp.int32))


def check_given(history: History, vocab_size: int) -> None:
    """Checks that the given tokens of all rows are in the vocabulary, if their values are known: not in ``jax.jit``."""
    if not has_known_values(history.tokens, history.lengths):
        return
    tokens, lengths = np.asarray(history.tokens), np.asarray(history.lengths)
    tokens = tokens[np.arange(tokens.shape[2]) < lengths[..., None]]
    if (outside := tokens[(tokens < 0) | (tokens >= vocab_size)]).size:
        raise ValueError(f"given tokens, such as a prefix, must be in [0, V = {vocab_size}), got {outside[0]}")


def begin(state: S, limits: Limits[S]) -> Start[S]:
    """Returns the start of a search, after its prefix if `Prefix.read` is given."""
    batch, num_hypotheses = shape = check_state(state)
    max_length, bos, pad = limits.max_length, limits.bos, limits.filler
    check_start(state, max_length, bos, limits.capacities)
    prefix = limits.prefix
    if prefix is None:
        prefix = Prefix(jnp.zeros((batch, 0), jnp.int32))
    elif not isinstance(prefix, Prefix):
        prefix = Prefix(prefix)
    check_rank("prefix", prefix.tokens, "B P")
    size = prefix.tokens.shape[1]
    if bos is None and size == 0:
        raise ConfigError("without bos, the first token must come from a prefix; got none")
    if prefix.tokens.shape[0] != batch or size > max_length:
        raise ConfigError(f"prefix must be [B = {batch}, at most max_length = {max_length}], got {prefix.tokens.shape}")
    num_given = jnp.full(batch, size)
    if prefix.lengths is not None:
        num_given = jnp.clip(jnp.asarray(prefix.lengths), 0, size)
    unread = jnp.full(batch, int(bos is None), jnp.int32)  # the first token, which no step has read
    forced = jnp.maximum(num_given, unread).astype(jnp.int32)
    inside = jnp.arange(size)[None] < forced[:, None]
    words = jnp.where(inside, prefix.tokens, pad).astype(jnp.int32)
    first = [] if bos is None else [jnp.full((batch, 1), bos, jnp.int32)]
    sequence = jnp.concatenate([*first, words], 1)  # the tokens that the model reads
    repeated = lambda x: jnp.broadcast_to(x[:, None], (batch, num_hypotheses, *x.shape[1:]))
    if prefix.read is None or sequence.shape[1] == 1:
        lengths, last = unread, sequence[:, 0]
    else:
        if limits.capacities and limits.capacities[0] < sequence.shape[1] - 1:
            raise ValueError(f"the first of capacities must hold the {sequence.shape[1] - 1} tokens of the prefix")
        number = forced - unread
        state = prefix.read(repeated(sequence[:, :-1]), state, repeated(number))
        lengths, last = forced, jnp.take_along_axis(sequence, number[:, None], axis=1)[:, 0]
    tokens = jnp.full((*shape, max_length), pad, jnp.int32).at[:, :, :size].set(repeated(words))
    requested = max_length if limits.max_lengths is None else jnp.asarray(limits.max_lengths)
    most = jnp.broadcast_to(jnp.clip(requested, 1, max_length), (batch,)).astype(jnp.int32)
    return Start(tokens, forced, lengths, repeated(last), jnp.maximum(most, forced), state)


def well_formed(
    transforms: Transforms, limits: Limits[S], max_lengths: Int[Array, " B"], *, sampled: bool = False
) -> tuple[Transform, ...]:
    """Appends the rules of every search: `pad` and `bos` are never chosen, and `forced_end` applies at the limit.

    A `bos` or a `pad` that also ends a sequence, as BART's and GPT-2's do, may be chosen.

    Args:
      max_lengths: the maximum number of tokens of each row.
      sampled: True if `for_sampling` orders the transforms and the rules about `pad` and `bos`.
    """
    never = tuple(token for token in (limits.pad, limits.bos) if token is not None and token not in limits.ends)
    rules = (*as_transforms(transforms), Forbid(never, normalized=True))
    if sampled:
        rules = for_sampling(rules)
    forced_end = limits.forced_end or ("free" if sampled else "scored")
    if not limits.ends or forced_end == "never":
        return rules
    return (*rules, ForceEnd(max_lengths, limits.ends, forced_end == "free"))
