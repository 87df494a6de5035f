"""Recurrent translation: a bidirectional encoder, and a decoder with a fixed context or with attention."""

from __future__ import annotations

import typing
from collections.abc import Collection

import jax
from flax import nnx
from jaxtyping import Array, Float

from jaxformer.functional.dropout import fold_in_name
from jaxformer.models import choices
from jaxformer.models.config import Seq2SeqConfig
from jaxformer.models.decoding_model import MemoryDecodingModel
from jaxformer.models.encoder import Memory
from jaxformer.models.recurrent_decoder import (
    Feed,
    RecurrentContext,
    RecurrentDecoder,
    RecurrentDecoderState,
    captured_weights,
    in_order,
)
from jaxformer.models.token_model import Input
from jaxformer.modules import Alignment, Embedding, Embeddings, Linear, RecurrentStack
from jaxformer.modules.captured import Intermediates
from jaxformer.modules.recurrent import AlignmentKind


class Seq2Seq(MemoryDecodingModel[RecurrentContext, RecurrentDecoderState]):
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
        d_model, d_hidden, attention = config.d_model, config.hidden_size, config.attention
        # The order of these lines determines the random values of the parameters.
        target = Embedding(config.target_vocab_size, d_model, rngs=rngs)
        shared = config.tie_embeddings in ("inputs", "all")
        source = target if shared else Embedding(config.source_vocab_size, d_model, rngs=rngs)
        layers = {"cell": config.cell, "dropout": config.dropout, "state_dropout": config.state_dropout, "rngs": rngs}
        self.encoder = RecurrentStack(d_model, d_hidden // 2, config.num_encoder_layers, bidirectional=True, **layers)
        fed_size = {"context": d_hidden, "output": d_model, "nothing": 0}[feed_of(config)]
        stack = RecurrentStack(d_model + fed_size, d_hidden, config.num_decoder_layers, **layers)
        bridge = Linear(
            d_hidden, config.state_vectors(config.num_decoder_layers) * d_hidden, axes=("model", "hidden"), rngs=rngs
        )
        alignment = None
        if attention is not None:
            inner = getattr(attention, "d_attention", None) or d_hidden
            kind = typing.cast(AlignmentKind, attention.kind)
            alignment = Alignment(d_hidden, d_hidden, inner, kind=kind, rngs=rngs)
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

    @property
    def attention_names(self) -> tuple[str, ...]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The names for `captured`."""
        return () if self.decoder.alignment is None else ("decoder.cross",)

    def states(
        self, source: Input, target: Input, *, key: jax.Array | None = None, capture: Collection[str] = ()
    ) -> tuple[Float[Array, "B T D"], Intermediates]:
        """Returns the teacher-forced outputs of a target: see `TokenModel`."""
        del capture  # the weights are computed anyway
        memory = self.encode(source, key=fold_in_name(key, "encoder"))
        x, weights = self.decoder(target, memory, key=fold_in_name(key, "decoder"))
        return x, captured_weights(weights)

    def encode(self, source: Input, *, key: jax.Array | None = None) -> Memory:
        """Returns the memory of a source: the last layer's states in both directions, concatenated; 0 at padding."""
        source = in_order(source)
        with jax.named_scope("embedding"):
            x = self.embeddings(source, key=fold_in_name(key, "embedding"))
        x, _ = self.encoder(x, valid=source.valid, key=fold_in_name(key, "layers"))
        return Memory(x, source.valid)

    def decode(self, target: Input, memory: Memory, *, key: jax.Array | None = None) -> Float[Array, "B T V"]:
        """Returns teacher-forced logits of a target, given a memory."""
        return self.head.logits(self.decoder(target, memory, key=key)[0])


def feed_of(config: Seq2SeqConfig) -> Feed:
    """Returns the kind of input that a decoder step has besides its token."""
    if isinstance(config.attention, choices.Dot):
        return "output" if config.attention.input_feeding else "nothing"
    return "context"
