"""A trained captioner with its tokenizer and its search: it returns captions of images, and attention by word."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Callable, Sequence
from typing import Any, Self

import jax
import numpy as np

from jaxformer.data.batch import by_length
from jaxformer.data.segmentation import SPACE
from jaxformer.data.tokenizer import Tokenizer
from jaxformer.errors import ConfigError
from jaxformer.inspection.attention_maps import AttentionMap, AttentionWeights, by_word, select
from jaxformer.models import RecurrentCaptioner, RecurrentCaptionerConfig, TransformerCaptioner
from jaxformer.models import TransformerCaptionerConfig as TransformerConfig
from jaxformer.modules.pure import Params, Pure
from jaxformer.reprs import brief_with_methods
from jaxformer.sharding import Placement
from jaxformer.tasks.async_dispatch import concurrently
from jaxformer.tasks.captioning.config import DecodeConfig
from jaxformer.tasks.generation import GenerationMixin, Member
from jaxformer.tasks.images import ImagePredictor, normalized
from jaxformer.tasks.search import Candidate, Sources, candidate

CaptionNet = Pure[RecurrentCaptioner, RecurrentCaptionerConfig] | Pure[TransformerCaptioner, TransformerConfig]


@dataclasses.dataclass(frozen=True)
class ImageCaptioner(ImagePredictor, GenerationMixin):
    """A captioner and its parameters, with everything needed to caption images."""

    net: CaptionNet
    params: Params
    tokenizer: Tokenizer
    decode: DecodeConfig = DecodeConfig()
    placement: Placement | None = None
    """The mesh whose devices share the images; None for one device."""
    steps: tuple[int, ...] = ()
    """The training steps whose parameters these are; several if they were averaged."""
    others: tuple[Member, ...] = ()
    """The other models of an ensemble, with the same tokenizer."""
    programs: set[object] = dataclasses.field(default_factory=set, init=False, repr=False, compare=False)
    """The compiled programs in use, one for each number of images."""

    __repr__ = brief_with_methods

    def caption(self, paths: Sequence[str | os.PathLike[str]]) -> list[str]:
        """Returns the best caption of the image in each file.

        Raises:
          DataError: a file is missing or holds no image.
          TypeError: `paths` is one path and not a sequence of paths.
        """
        return [best[0].text for best in self.candidates(self.read_all(paths))]

    def ensemble_with(self, others: Sequence[Self]) -> Self:
        """Returns an ensemble of this model and others.

        Raises:
          ConfigError: see `GenerationMixin`; or the models take images of different sizes.
        """
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
          progress: called with the number of images done after each batch.

        Raises:
          ConfigError: `n_best` is below 1, or above the number of captions that the search finds.
          ValueError: the images have another size or dtype.
        """
        self._check(images)
        self._check_n_best(n_best)
        number = self.decode.mbr or n_best
        results: list[list[Candidate]] = []
        parts = (images[start : start + self._batch_size] for start in range(0, len(images), self._batch_size))
        searches = (
            (len(part), self._search(part, first + i * self._batch_size, number)) for i, part in enumerate(parts)
        )
        for count, found in concurrently(searches, self._num_threads):
            ranks = range(found.tokens.shape[1])
            best = [[candidate(found, row, rank, self.tokenizer) for rank in ranks] for row in range(count)]
            results += self._ranked(best, n_best)
            if progress is not None:
                progress(count)
        return results

    def attention(self, images: np.ndarray, captions: Sequence[str]) -> list[AttentionWeights]:
        """Returns the attention of each caption's pieces, and of its end token, to the grid of its image, row by row.

        Raises:
          ValueError: the images have another size or dtype, or there is not one caption for each.
        """
        self._check(images)
        if len(captions) != len(images):
            raise ValueError(f"each image needs a caption, got {len(images)} images and {len(captions)} captions")
        rows, columns = self.net.config.image.grid_size
        places = tuple(f"{SPACE}{row},{column}" for row in range(rows) for column in range(columns))
        eos, bos, pad = self.tokenizer.special.eos, self.tokenizer.special.bos, self.tokenizer.special.pad
        tokens = [np.append(ids, eos) for ids in self.tokenizer.encode(list(captions))]
        found: dict[int, AttentionWeights] = {}
        for indices in by_length([len(ids) for ids in tokens], self.decode.batch_size):
            inputs = np.full((len(indices), self._padded(len(tokens[indices[-1]]))), pad, np.int32)
            for row, i in enumerate(indices):
                inputs[row, : len(tokens[i])] = [bos, *tokens[i][:-1]]
            weights = np.asarray(_captured_weights(self.net, self.params, images[indices], inputs))
            for row, i in enumerate(indices):
                pieces = (*self.tokenizer.pieces(tokens[i][:-1]), "</s>")
                found[i] = AttentionWeights(places, pieces, weights[:, row, :, : len(tokens[i])])
        return [found[i] for i in range(len(images))]

    def attention_maps(self, images: np.ndarray, captions: Sequence[str]) -> list[AttentionMap]:
        """Returns the attention of each caption's words, as the mean of all layers and heads: see `attention`."""
        return [by_word(select(pieces)) for pieces in self.attention(images, captions)]

    def _padded(self, length: int) -> int:
        """Returns the padded length of a batch of captions, a multiple of 16, so that few programs are compiled."""
        padded = length + -length % 16
        return max(length, min(padded, self.net.config.length_limit or padded))

    def _search(self, images: np.ndarray, first: int, num_samples: int) -> Any:
        """Returns the hypotheses of images; `first` is the number of the first one."""
        decode = self.decode
        num_rows = min(self._batch_size, len(images) + -len(images) % self._num_shards)
        max_length = min(
            decode.max_length, *(model.net.config.length_limit or decode.max_length for model in self._models)
        )
        padded = np.zeros((num_rows, *self.shape), np.uint8)
        padded[: len(images)] = images
        whole = lambda value: np.full(num_rows, value, np.int32)
        numbers, none = np.arange(first, first + num_rows, dtype=np.int32)[:, None], np.zeros((num_rows, 0), np.int32)
        minimum = whole(min(decode.min_length + 1, max_length))  # the end included
        batch = Sources(padded, whole(max_length), minimum, none, whole(0), numbers)
        key = jax.random.key(decode.seed)
        options = {"num_draws": num_samples, "max_length": max_length, "prepare": normalized}
        return self._hypotheses(decode, batch, key, **options)


@functools.partial(jax.jit, static_argnums=0)
def _captured_weights(net: CaptionNet, params: Params, images: jax.Array, tokens: jax.Array) -> jax.Array:
    """Returns the weights ``[L, B, N, T, S]``."""
    return net.bind(params).captured(normalized(images), tokens)["decoder.cross"].weights()
