"""A trained captioner with its tokenizer and its search: it returns captions of images, and attention by word."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Callable, Sequence
from typing import Self

import jax
import jax.numpy as jnp
import numpy as np

from jaxformer.decoding import BeamTrace, Hypotheses
from jaxformer.errors import ConfigError, DataError
from jaxformer.inspection.attention_maps import AttentionMap, AttentionWeights, Patches, by_word, places, select
from jaxformer.inspection.pages import View
from jaxformer.models import RecurrentCaptioner, RecurrentCaptionerConfig, TransformerCaptioner
from jaxformer.models import TransformerCaptionerConfig as TransformerConfig
from jaxformer.modules.pure import Params, Pure
from jaxformer.reprs import brief_with_methods
from jaxformer.tasks import views
from jaxformer.tasks.batched import batched, in_order, padded
from jaxformer.tasks.captioning.config import DecodeConfig
from jaxformer.tasks.generation import TextPredictor
from jaxformer.tasks.images import ImagePredictor, normalized, with_rows
from jaxformer.tasks.search import Candidate, Sources

CaptionNet = Pure[RecurrentCaptioner, RecurrentCaptionerConfig] | Pure[TransformerCaptioner, TransformerConfig]


@dataclasses.dataclass(frozen=True)
class ImageCaptioner(ImagePredictor, TextPredictor):
    """A captioner and its parameters, with everything needed to caption images."""

    net: CaptionNet
    decode: DecodeConfig = DecodeConfig()

    __repr__ = brief_with_methods

    def caption(self, paths: Sequence[str | os.PathLike[str]]) -> list[str]:
        """Returns the best caption of the image in each file.

        Raises:
          DataError: a file is missing or holds no image.
          TypeError: `paths` is one path and not a sequence of paths.
        """
        return [best[0].text for best in self.candidates(self.read_all(paths))]

    def ensemble_with(self, others: Sequence[Self]) -> Self:
        """Returns an ensemble of this model and others."""
        for other in others:
            if other.shape != self.shape:
                raise ConfigError(f"the models of an ensemble must see images {self.shape}, got {other.shape}")
        return super().ensemble_with(others)

    def candidates(
        self, images: np.ndarray, *, n_best: int = 1, first: int = 1, progress: Callable[[int], None] | None = None
    ) -> list[list[Candidate]]:
        """Returns the `n_best` captions of each image, best first; fewer if a beam finds fewer.

        Args:
          images: uint8 ``[N, h, w, C]``.
          first: the number of the first image; random draws depend on it.
          progress: called with the number of images done since the last call.

        Raises:
          ConfigError: `n_best` is below 1, or above the number of captions that the search finds.
          ValueError: the images have another size or dtype.
        """
        self._check(images)
        number, rows = self.decode.num_texts(n_best), self._shared(self.decode.batch_size)
        search = lambda batch: self._search(images[batch], first + batch[0], number)
        return self._best(search, [1] * len(images), rows, n_best, progress)

    def attention(self, images: np.ndarray, captions: Sequence[str]) -> list[AttentionWeights]:
        """Returns the attention of each caption's pieces, and of its end token, to the grid of its image, row by row.

        Raises:
          ValueError: the images have another size or dtype, or there is not one caption for each.
        """
        self._check(images)
        if len(captions) != len(images):
            raise ValueError(f"each image needs a caption, got {len(images)} images and {len(captions)} captions")
        eos, bos, pad = self.tokenizer.special.eos, self.tokenizer.special.bos, self.tokenizer.special.pad
        tokens = [np.append(ids, eos) for ids in self.tokenizer.encode(list(captions))]

        def run(batch: list[int]) -> Callable[[], jax.Array]:
            shape = len(batch), self._padded(len(tokens[batch[-1]]))
            inputs = padded([[bos, *tokens[i][:-1]] for i in batch], shape, pad).ids
            return functools.partial(_captured_weights, self.net, self.params, images[batch], inputs)

        lengths = [len(ids) for ids in tokens]
        found = in_order(batched(run, lengths, self.decode.batch_size))
        patches = [Patches(image, self.net.config.image.grid_size) for image in images]
        return [
            AttentionWeights(places(grid), (*self.tokenizer.pieces(ids[:-1]), "</s>"), weights[:, :, : len(ids)], grid)
            for ids, weights, grid in zip(tokens, found, patches, strict=True)
        ]

    def view(self, path: str | os.PathLike[str], caption: str | None = None, *, search: bool = True) -> View:
        """Returns every attention of a caption of the image in a file, by default the model's own caption.

        With `search`, there is also what a beam search considered.

        Raises:
          DataError: the file is missing or holds no image, or the caption has more tokens than the model's positions.
        """
        image = self.read(path)[None]
        tree = ()
        if search and caption is None:
            tree = self._tree(lambda trace: self._search(image, 1, self.decode.num_texts(1), trace))
        caption = self.candidates(image)[0][0].text if caption is None else caption
        special, limit = self.tokenizer.special, self.net.config.length_limit
        labels = np.append(self.tokenizer.encode([caption])[0], special.eos)
        if limit is not None and len(labels) > limit:
            raise DataError(f"the caption has {len(labels)} tokens, but the model has {limit} positions")
        fed = padded([[special.bos, *labels[:-1]]], (1, self._padded(len(labels))), special.pad).ids
        inputs = np.asarray(normalized(jnp.asarray(image))), fed
        guesses = views.predictions(self.net, self.params, *inputs, tokenizer=self.tokenizer, number=len(labels))
        weights = views.all_weights(self.net, self.params, *inputs)
        *pieces, _ = self.tokenizer.pieces(labels)
        target, read = (*pieces, "</s>"), ("<s>", *pieces)
        patches = Patches(image[0], self.net.config.image.grid_size)
        found = {"decoder.cross": views.cropped(weights["decoder.cross"], target, places(patches), guesses, patches)}
        if "decoder.self" in weights:
            found["decoder.self"] = views.cropped(weights["decoder.self"], read, read, guesses)
        return View(os.fspath(path), found, {"caption": caption}, tree)

    def attention_maps(self, images: np.ndarray, captions: Sequence[str]) -> list[AttentionMap]:
        """Returns the attention of each caption's words, as the mean of all layers and heads: see `attention`."""
        return [by_word(select(pieces)) for pieces in self.attention(images, captions)]

    def _padded(self, length: int) -> int:
        """Returns the padded length of a batch of captions, a multiple of 16, so that few programs are compiled."""
        padded = length + -length % 16
        return max(length, min(padded, self.net.config.length_limit or padded))

    def _search(
        self, images: np.ndarray, first: int, number: int, trace: BeamTrace | None = None
    ) -> Callable[[], Hypotheses]:
        """Returns the hypotheses of images; `first` is the number of the first one."""
        decode = self.decode
        num_rows = min(self._shared(decode.batch_size), self._shared(len(images)))
        max_length = min(
            decode.max_length, *(model.net.config.length_limit or decode.max_length for model in self._models)
        )
        whole = lambda value: np.full(num_rows, value, np.int32)
        batch = Sources(
            inputs=with_rows(images, num_rows),
            max_lengths=whole(max_length),
            min_lengths=whole(min(decode.min_length + 1, max_length)),  # the end included
            prefix=np.zeros((num_rows, 0), np.int32),
            prefix_lengths=whole(0),
            numbers=np.arange(first, first + num_rows, dtype=np.int32)[:, None],
        )
        return self._hypotheses(decode, batch, number=number, max_length=max_length, prepare=normalized, trace=trace)


@functools.partial(jax.jit, static_argnums=0)
def _captured_weights(net: CaptionNet, params: Params, images: jax.Array, tokens: jax.Array) -> jax.Array:
    """Returns the weights ``[B, L, N, T, S]``."""
    return jnp.moveaxis(net.bind(params).captured(normalized(images), tokens)["decoder.cross"].weights(), 1, 0)
