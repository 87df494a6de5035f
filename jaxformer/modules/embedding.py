"""Embeddings of tokens and image patches, the position vectors that are added to them, and the sum of both."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from jaxformer import functional
from jaxformer.axes import constrain
from jaxformer.dims import check_rank
from jaxformer.functional.feed_forward import add_shared, scaled
from jaxformer.functional.positions.vectors import check_given_positions, check_positions, first_positions
from jaxformer.functional.tokens import Tokens, clear_padding
from jaxformer.masks.algebra import signed
from jaxformer.modules.convolution import Convolution
from jaxformer.modules.layers import normal, normalized
from jaxformer.sharding import tables


class Embedding(nnx.Module):
    """A table of token vectors; a looked-up vector is multiplied by `scale`.

    The default scale is ``sqrt(D)`` (Vaswani et al. 2017, 3.4). With tied embeddings, the same table is the output
    projection (Press and Wolf 2017).
    """

    def __init__(self, vocab_size: int, d_model: int, *, scale: float | None = None, rngs: nnx.Rngs):
        if vocab_size < 1:
            raise ValueError(f"vocab_size must be at least 1, got {vocab_size}")
        table = normal(rngs.params(), (vocab_size, d_model), deviation=d_model**-0.5)
        self.table = nnx.Param(table, axes=("vocab", "model"))
        self.scale = d_model**0.5 if scale is None else scale

    def __call__(
        self,
        tokens: Int[Array, "B ..."],
        *,
        dtype: jnp.dtype = jnp.dtype("float32"),
        where: Bool[Array, "B ..."] | None = None,
    ) -> Float[Array, "B ... D"]:
        """Returns ``scale table[tokens]``, in `dtype`.

        The table may be its copies: see `sharding.with_copies`.

        Args:
          tokens: ids in [0, V). Under tracing their values are unknown and not checked: an id of at least V has the
            vector of the last one, and a negative id counts from the end.
          where: True where an id counts, by default everywhere; other ids, such as padding, are not checked.

        Raises:
          ValueError: ids are not integers, or one is outside of [0, V); the message has the one farthest outside.
        """
        if not jnp.issubdtype(tokens.dtype, jnp.integer):
            raise ValueError(f"token ids must be integers, got {tokens.dtype}")
        copies = self.table[...]
        if copies.ndim == 2:
            copies = tables.table_copies(copies, rows=tokens.shape[0], dtype=dtype)
        return scaled(tables.lookup(copies, tokens, where=where), self.scale).astype(dtype)


class PositionVectors(nnx.Module):
    """Position vectors that are added to token vectors; subclasses compute them."""

    max_length: int | None = None
    """The longest length for which every position has a vector; None for no limit."""
    offset: int = 0
    """The row of position 0 in the table, which is the number of negative positions that have vectors."""
    needs_length: bool = False
    """True if a vector depends on the length of its sequence, which a decoder does not know."""

    def __call__(
        self, positions: Int[Array, "... T"] | Int[np.ndarray, "... T"], length: Int[Array, "B _"] | int
    ) -> Float[Array, "*c D"]:
        """Returns the vectors of `positions` in sequences of this length, or of one length for each position."""
        raise NotImplementedError(f"{type(self).__name__} does not define __call__")


class SinusoidalPositions(PositionVectors):
    """The vectors of `functional.sinusoidal`, which has no parameters; position t has vector ``t + offset``."""

    def __init__(
        self, d_model: int, *, layout: Literal["interleaved", "halves", "fairseq"] = "interleaved", offset: int = 0
    ):
        self.d_model, self.offset = d_model, offset
        self.layout: Literal["interleaved", "halves", "fairseq"] = layout

    def __call__(self, positions, length):
        return functional.sinusoidal(signed(positions) + self.offset, dim=self.d_model, layout=self.layout)


class LearnedPositions(PositionVectors):
    """A table of position vectors; position t has row ``t + offset``.

    BART and RoBERTa have an offset of 2.
    """

    def __init__(
        self, max_positions: int, d_model: int, *, offset: int = 0, deviation: float | None = None, rngs: nnx.Rngs
    ):
        """Makes a table of normal numbers.

        Args:
          deviation: their standard deviation, by default ``D^-0.5``, that of token vectors with a scale of 1. Vectors
            much smaller than those they are added to are learned slowly.
        """
        size = d_model**-0.5 if deviation is None else deviation
        table = normal(rngs.params(), (max_positions + offset, d_model), deviation=size)
        self.table = nnx.Param(table, axes=("position", "model"))
        self.offset = offset
        self.max_length = max_positions

    def __call__(self, positions, length):
        return functional.learned(self.table[...], jnp.asarray(signed(positions)) + self.offset)


class RawPositions(PositionVectors):
    """Each position t as a vector of equal entries, t or t / (N - 1): the simplest baselines for position vectors."""

    def __init__(self, d_model: int, *, normalized: bool):
        self.d_model, self.needs_length = d_model, normalized

    def __call__(self, positions, length):
        if self.needs_length:
            positions = jnp.broadcast_to(positions, jnp.broadcast_shapes(jnp.shape(length), positions.shape))
            return functional.normalized_positions(positions, length=length, dim=self.d_model)
        return functional.raw_positions(positions, dim=self.d_model)


class Embeddings(nnx.Module):
    """The input of a stack: the sum of token, position and type vectors, an optional norm, and dropout."""

    def __init__(
        self,
        tokens: Embedding,
        positions: PositionVectors | None = None,
        *,
        types: Embedding | None = None,
        norm: Callable[[Array], Array] | None = None,
        dropout: float = 0.0,
        dtype: str = "float32",
    ):
        self.tokens, self.positions, self.types, self.norm = tokens, positions, types, norm
        self.dropout = dropout
        self.dtype = jnp.dtype(dtype)

    def __call__(self, tokens: Tokens, *, key: jax.Array | None = None) -> Float[Array, "B T D"]:
        """Returns the vectors of full sequences.

        Under tracing, the values of positions are unknown, and a position that a table does not have gets the vector of
        its last row.

        Raises:
          ValueError: ids or positions do not have two dimensions, `valid` has another shape or is not Boolean, a table
            has no vector for a token, a type or a position, or there are types but no table for them.
        """
        ids, valid, positions, segments = tokens.ids, tokens.valid, tokens.positions, tokens.segments
        check_rank("tokens", ids, "B T")
        if valid is not None and (valid.shape != ids.shape or valid.dtype != bool):
            got = f"{valid.dtype} {list(valid.shape)}"
            raise ValueError(f"valid must be Boolean with the shape of tokens, {list(ids.shape)}, got {got}")
        length = ids.shape[1]
        if positions is None:
            self.check_length(length)
        else:
            check_rank("positions", positions, "B T")
            if self.positions is not None and self.positions.max_length is not None:
                check_given_positions(positions, self.positions.offset, self.positions.max_length)
        # Positions are a constant of the program, unless that would make it large.
        index = first_positions(length, most=(1 << 20) // self.d_model)[None] if positions is None else positions
        # A row without tokens, which only fills up a batch, has length 0; its vectors do not matter.
        count = length if valid is None else jnp.maximum(valid.sum(1, keepdims=True), 1)
        if segments is not None and self.positions is not None and self.positions.needs_length:
            same = segments[:, :, None] == segments[:, None]
            if valid is not None:
                same &= valid[:, None]
            count = jnp.maximum(same.sum(2), 1)
            index = jnp.asarray(index)[:, :length]  # one for each count; a symbolic length has more
        x = self._sum(ids, index, count, tokens.types, valid, tokens.shown)
        return functional.dropout(x, rate=self.dropout, key=key)

    def step(
        self, tokens: Int[Array, "B K T"], positions: Int[Array, "B K T"], *, types: Int[Array, "B K T"] | None = None
    ) -> Float[Array, "B Q D"]:
        """Returns the vectors of T tokens of each hypothesis at their positions, along one dimension Q = K T."""
        check_rank("tokens", tokens, "B K T")
        ids, index, kinds = jax.tree.map(lambda x: x.reshape(x.shape[0], -1), (tokens, positions, types))
        return self._sum(ids, index, 0, kinds)

    def check_length(self, length: int) -> None:
        """Checks that there are position vectors for a sequence of this length.

        Raises:
          ValueError: there are too few; the message has both lengths.
        """
        if self.positions is not None and self.positions.max_length is not None:
            check_positions(length, self.positions.max_length)

    @property
    def d_model(self) -> int:
        """D, the dimension of the vectors."""
        return self.tokens.table.shape[-1]

    def _sum(
        self,
        tokens: Array,
        positions,
        length,
        types: Array | None,
        valid: Array | None = None,
        shown: Array | None = None,
    ) -> Array:
        x = clear_padding(self.tokens(tokens, dtype=self.dtype, where=valid), shown)
        if self.positions is not None:
            vectors = self.positions(positions, length)[:, : x.shape[1]]  # a symbolic length has more
            x = add_shared(x, vectors)
        if self.types is not None:
            x = x + self.types(jnp.zeros_like(tokens) if types is None else types, dtype=self.dtype, where=valid)
        elif types is not None:
            raise ValueError("these embeddings have no token types, but types were given; set num_token_types")
        return constrain(normalized(x, self.norm), "batch", "length", "model")


class PatchEmbeddings(nnx.Module):
    """The input of a vision Transformer (Dosovitskiy et al. 2021): patches, a class token, learned positions.

    An image is split into squares of `patch_size` pixels, row by row. One matrix projects each to D features: a
    convolution whose stride is the size of its kernel. The class token, if there is one, comes first.
    """

    def __init__(
        self,
        image_size: tuple[int, int],
        patch_size: int,
        d_model: int,
        *,
        num_channels: int = 3,
        class_vector: bool = True,
        dropout: float = 0.0,
        dtype: str = "float32",
        rngs: nnx.Rngs,
    ):
        """Initializes the parameters.

        Raises:
          ValueError: the patches do not cover an image of this height and width.
        """
        if any(size < 1 or size % patch_size for size in image_size):
            raise ValueError(f"image_size must be a multiple of patch_size {patch_size}, got {image_size}")
        self.image_size, self.num_channels = image_size, num_channels
        layer = functools.partial(Convolution, num_channels, d_model, stride=patch_size, padding="valid", rngs=rngs)
        self.projection = layer(kernel_size=(patch_size, patch_size), axes=(None, "model"))
        draw = lambda: normal(rngs.params(), (d_model,), deviation=d_model**-0.5)
        self.class_vector = nnx.Param(draw(), axes=("model",)) if class_vector else None
        num_patches = (image_size[0] // patch_size) * (image_size[1] // patch_size)
        self.positions = LearnedPositions(num_patches + class_vector, d_model, rngs=rngs)
        self.dropout = dropout
        self.dtype = jnp.dtype(dtype)

    def __call__(
        self,
        images: Float[Array, "B h w C"],
        *,
        key: jax.Array | None = None,
    ) -> Float[Array, "B S D"]:
        """Returns the vectors of images; S is the number of patches, plus one with a class token.

        Raises:
          ValueError: the images have another size; see `models.with_image_size`.
        """
        expected = (*self.image_size, self.num_channels)
        if images.shape[1:] != expected:
            raise ValueError(f"images must be [B, height, width, channels] = [B, {expected}], got {images.shape}")
        x = self.projection(images.astype(self.dtype))
        x = x.reshape(x.shape[0], -1, x.shape[-1])
        if self.class_vector is not None:
            first = jnp.broadcast_to(self.class_vector[...], (x.shape[0], 1, x.shape[2])).astype(self.dtype)
            x = jnp.concatenate([first, x], 1)
        x = add_shared(x, self.positions(jnp.arange(x.shape[1])[None], x.shape[1]))
        return functional.dropout(constrain(x, "batch", "length", "model"), rate=self.dropout, key=key)
