"""Forced first tokens of sequences, and the start of a search that continues after them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Generic, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from jaxformer.axes import has_known_values
from jaxformer.decoding.api import S, check_start, check_state
from jaxformer.decoding.transforms import History
from jaxformer.dims import check_rank
from jaxformer.errors import ConfigError
from jaxformer.reprs import brief


class ReadPrefix(Protocol[S]):
    """Maps tokens ``[B, K, P]``, a state and lengths to the state after these tokens, read in one pass.

    The lengths, ``int32 [B, K]``, are from 0 to P; the tokens of a hypothesis after its length are padding.
    """

    def __call__(self, tokens: jax.Array, state: S, lengths: jax.Array, /) -> S: ...


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
    read: ReadPrefix[S] | None = None
    """Computes the state after a prefix in one pass, such as
    ``lambda tokens, state, lengths: model.prefill(tokens, state, context, lengths=lengths)[1]``; by default the search
    takes one step for each token."""

    __repr__ = brief


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


def check_given(given: History, vocab_size: int) -> None:
    """Checks that the given tokens of all rows are in the vocabulary, if their values are known: not in ``jax.jit``.

    Raises:
      ValueError: one is not.
    """
    if not has_known_values(given.tokens, given.lengths):
        return
    tokens, lengths = np.asarray(given.tokens), np.asarray(given.lengths)
    tokens = tokens[np.arange(tokens.shape[2]) < lengths[..., None]]
    if (outside := tokens[(tokens < 0) | (tokens >= vocab_size)]).size:
        raise ValueError(f"given tokens, such as a prefix, must be in [0, V = {vocab_size}), got {outside[0]}")


def begin(
    state: S,
    max_length: int,
    *,
    bos: int | None,
    pad: int,
    prefix: Prefix[S] | Int[Array, "B P"] | None,
    max_lengths: Int[Array, " B"] | None,
    capacities: Sequence[int] = (),
) -> Start[S]:
    """Returns the start of a search, after its prefix if `Prefix.read` is given; see `greedy` for the arguments.

    Raises:
      ConfigError: the prefix is longer than `max_length` or does not have B rows; there is neither `bos` nor a prefix;
        `max_length` is below 1.
      ValueError: the prefix does not have two dimensions; see also `check_start`.
    """
    batch, num_hypotheses = shape = check_state(state)
    check_start(state, max_length, bos, capacities)
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
    given = jnp.full(batch, size) if prefix.lengths is None else jnp.clip(jnp.asarray(prefix.lengths), 0, size)
    forced = (given if bos is not None else jnp.maximum(given, 1)).astype(jnp.int32)
    inside = jnp.arange(size)[None] < forced[:, None]
    words = jnp.where(inside, prefix.tokens, pad).astype(jnp.int32)
    first = [] if bos is None else [jnp.full((batch, 1), bos, jnp.int32)]
    sequence = jnp.concatenate([*first, words], 1)  # the tokens that the model reads
    repeated = lambda x: jnp.broadcast_to(x[:, None], (batch, num_hypotheses, *x.shape[1:]))
    unread = jnp.full(batch, 0 if bos is not None else 1, jnp.int32)
    if prefix.read is None or sequence.shape[1] == 1:
        lengths, last = unread, sequence[:, 0]
    else:
        if capacities and capacities[0] < sequence.shape[1] - 1:
            raise ValueError(f"the first of capacities must hold the {sequence.shape[1] - 1} tokens of the prefix")
        number = forced - unread
        state = prefix.read(repeated(sequence[:, :-1]), state, repeated(number))
        lengths, last = forced, jnp.take_along_axis(sequence, number[:, None], axis=1)[:, 0]
    if max_length < 1:
        raise ConfigError(f"max_length must be at least 1, got {max_length}")
    tokens = jnp.full((*shape, max_length), pad, jnp.int32).at[:, :, :size].set(repeated(words))
    requested = max_length if max_lengths is None else jnp.asarray(max_lengths)
    most = jnp.broadcast_to(jnp.clip(requested, 1, max_length), (batch,)).astype(jnp.int32)
    return Start(tokens, forced, lengths, repeated(last), jnp.maximum(most, forced), state)
