"""Recurrent translation: a bidirectional encoder, and a decoder with a fixed context or with attention."""

from __future__ import annotations

from collections.abc import Collection

import jax
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from jaxformer import sharding
from jaxformer.functional.dropout import fold_in_name
from jaxformer.models.decoding_mixin import MemoryDecodingMixin
from jaxformer.models.encoder import Memory
from jaxformer.models.recurrent_decoder import (
    CapturedWeights,
    Feed,
    RecurrentContext,
    RecurrentDecoder,
    RecurrentDecoderState,
)
from jaxformer.models.seq2seq_config import Seq2SeqConfig
from jaxformer.models.transformer import select
from jaxformer.modules import Alignment, Embedding, Embeddings, Linear, RecurrentStack


class Seq2Seq(MemoryDecodingMixin[RecurrentContext, RecurrentDecoderState]):
    r"""``source, target -> logits``, with the methods of `EncoderDecoder`; use it through ``pure(Seq2Seq, config)``.

    The encoder reads the source in both directions; its last states, the fixed context c, set the initial state of the
    decoder, ``tanh(W c)``. With the state :math:`s_t`, the context :math:`c_t` and the table E of tokens, each output
    is :math:`\tilde h_t = \tanh(W_c [s_t; c_t])` (Luong et al. 2015, 3) and the logits are :math:`E \tilde h_t`.

    ==================  =======================================  =========================================
    attention           context                                  input of the first decoder layer
    ==================  =======================================  =========================================
    none                :math:`c` (Cho et al. 2014)              :math:`[y_{t-1}; c]`
    additive            from :math:`s_{t-1}` (Bahdanau et al.)   :math:`[y_{t-1}; c_t]`
    dot/general/concat  from :math:`s_t` (Luong et al. 2015)     :math:`y_{t-1}`, or with input feeding
                                                                 :math:`[y_{t-1}; \tilde h_{t-1}]`
    ==================  =======================================  =========================================
    """

    decoder: RecurrentDecoder

    def __init__(self, config: Seq2SeqConfig, *, rngs: nnx.Rngs):
        sizes = config.source_vocab_size, config.target_vocab_size
        if min(sizes) < 1:
            raise ValueError(f"source_vocab_size and target_vocab_size must be at least 1, got {sizes}")
        d_model, d_hidden, attention = config.d_model, config.hidden_size, config.attention
        # The order of these lines determines the random values of the parameters.
        self.shared = config.tie_embeddings in ("inputs", "all")
        target = Embedding(config.target_vocab_size, d_model, rngs=rngs)
        source = target if self.shared else Embedding(config.source_vocab_size, d_model, rngs=rngs)
        layers = {"cell": config.cell, "dropout": config.dropout, "state_dropout": config.state_dropout, "rngs": rngs}
        self.encoder = RecurrentStack(d_model, d_hidden // 2, config.num_encoder_layers, bidirectional=True, **layers)
        stack = RecurrentStack(d_model + fed_size(config), d_hidden, config.num_decoder_layers, **layers)
        bridge = Linear(d_hidden, config.num_state_vectors * d_hidden, axes=("model", "hidden"), rngs=rngs)
        alignment = None
        if attention != "none":
            alignment = Alignment(d_hidden, d_hidden, config.d_attention or d_hidden, kind=attention, rngs=rngs)
        readout = Linear(2 * d_hidden, d_model, bias=False, axes=("hidden", "model"), rngs=rngs)
        untied = config.tie_embeddings in ("none", "inputs")
        axes = ("model", "vocab")
        output = Linear(d_model, config.target_vocab_size, bias=False, axes=axes, rngs=rngs) if untied else None

        inputs = {"dropout": config.dropout, "dtype": config.compute_dtype}
        self.embeddings = Embeddings(source, **inputs)
        self.decoder = RecurrentDecoder(
            Embeddings(target, **inputs),
            stack,
            bridge,
            readout,
            alignment=alignment,
            output=output,
            feed=feed_of(config),
            dropout=config.dropout,
        )

    def __call__(
        self,
        source: Int[Array, "B S"],
        target: Int[Array, "B T"],
        *,
        source_valid: Bool[Array, "B S"] | None = None,
        target_valid: Bool[Array, "B T"] | None = None,
        key: jax.Array | None = None,
    ) -> Float[Array, "B T V"]:
        """Returns teacher-forced logits, float32: see `EncoderDecoder`."""
        memory = self.encode(source, source_valid=source_valid, key=fold_in_name(key, "encoder"))
        return self.decode(target, memory, target_valid=target_valid, key=fold_in_name(key, "decoder"))

    def encode(
        self,
        source: Int[Array, "B S"],
        *,
        source_valid: Bool[Array, "B S"] | None = None,
        key: jax.Array | None = None,
        copies: Float[Array, "G C V D"] | None = None,
    ) -> Memory:
        """Returns the memory of a source: the last layer's states in both directions, concatenated; 0 at padding."""
        with jax.named_scope("embedding"):
            x = self.embeddings(source, valid=source_valid, key=fold_in_name(key, "embedding"), copies=copies)
        x, _ = self.encoder(x, valid=source_valid, key=fold_in_name(key, "layers"))
        return Memory(x, source_valid)

    def decode(
        self,
        target: Int[Array, "B T"],
        memory: Memory,
        *,
        target_valid: Bool[Array, "B T"] | None = None,
        key: jax.Array | None = None,
    ) -> Float[Array, "B T V"]:
        """Returns teacher-forced logits of a target, given a memory."""
        return self.decoder.logits(self.decoder(target, memory, valid=target_valid, key=key)[0])

    def cross_entropy(
        self,
        source: Int[Array, "B S"],
        target: Int[Array, "B T"],
        labels: Int[Array, "B T"],
        *,
        source_valid: Bool[Array, "B S"] | None = None,
        target_valid: Bool[Array, "B T"] | None = None,
        where: Bool[Array, "B T"] | None = None,
        right_padded: bool = False,
        smoothing: float = 0.0,
        z_loss: float = 0.0,
        key: jax.Array | None = None,
        linear_loss: sharding.LinearLoss = sharding.linear_cross_entropy,
    ) -> tuple[Float[Array, ""], Float[Array, ""]]:
        """Returns the loss of the teacher-forced logits, (sum, count): see `EncoderDecoder.cross_entropy`.

        Args:
          right_padded: has no effect: a recurrent decoder reads no later token, so padding at the end needs no mask.
        """
        del right_padded
        embeddings, output = self.decoder.embeddings, self.decoder.output
        copies = embeddings.tokens.copies(target.shape[0], dtype=embeddings.dtype)
        memory = self.encode(
            source, source_valid=source_valid, key=fold_in_name(key, "encoder"), copies=copies if self.shared else None
        )
        x, _ = self.decoder(target, memory, valid=target_valid, key=fold_in_name(key, "decoder"), copies=copies)
        table = copies if output is None else output.kernel[...].T
        with jax.named_scope("loss"):
            where = target_valid if where is None else where
            return linear_loss(x, table, labels, where=where, smoothing=smoothing, z_loss=z_loss)

    def captured(
        self,
        source: Int[Array, "B S"],
        target: Int[Array, "B T"],
        names: Collection[str] = ("decoder.cross",),
        *,
        source_valid: Bool[Array, "B S"] | None = None,
        target_valid: Bool[Array, "B T"] | None = None,
    ) -> dict[str, CapturedWeights]:
        """Returns the weights of the named attentions, without dropout: "decoder.cross", if there is attention.

        Raises:
          ValueError: a name does not exist.
        """
        _, weights = self.decoder(target, self.encode(source, source_valid=source_valid), valid=target_valid)
        return select({} if weights is None else {"decoder.cross": CapturedWeights(weights[None, :, None])}, names)


def feed_of(config: Seq2SeqConfig) -> Feed:
    """Returns the kind of input that a decoder step has besides its token."""
    if config.attention in ("none", "additive"):
        return "context"
    return "output" if config.input_feeding else "nothing"


def fed_size(config: Seq2SeqConfig) -> int:
    """Returns the number of input features of a decoder step besides its token."""
    return {"context": config.hidden_size, "output": config.d_model, "nothing": 0}[feed_of(config)]
