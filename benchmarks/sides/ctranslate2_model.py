"""An encoder-decoder of this library in CTranslate2's format."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import ctranslate2
import jax
import numpy as np


def converted(
    params: Mapping[str, Any],
    pieces: Sequence[str],
    positions: np.ndarray,
    *,
    num_heads: int,
    pre_norm: bool,
    norm_epsilon: float,
    add_source_eos: bool,
) -> Any:
    """Returns the specification of a model whose three tables are one; its method `save` writes it to a folder.

    Args:
      params: of `models.EncoderDecoder`, with sinusoidal positions and plain feed-forward networks.
      pieces: the tokens' names, in order; CTranslate2 needs ``<s>``, ``</s>`` and ``<unk>`` among them.
      positions: vectors ``[N, D]``.
      add_source_eos: adds the end to each source, which then comes without.
    """
    params = jax.tree.map(np.asarray, dict(params))
    table = params["decoder"]["embeddings"]["tokens"]["table"]
    dim = table.shape[1]
    stacks = {side: params[side]["stack"]["layers"] for side in ("encoder", "decoder")}
    layers = tuple(len(jax.tree.leaves(stack)[0]) for stack in stacks.values())
    made = ctranslate2.specs.TransformerSpec.from_config(layers, num_heads, pre_norm=pre_norm)
    flat = lambda x: np.ascontiguousarray(x.reshape(dim, -1).T)  # [D, ...] to [out, in]

    def norm(target: Any, given: Any) -> None:
        target.gamma, target.beta = given["scale"], given["bias"]

    def output(target: Any, given: Any) -> None:
        target.weight = np.ascontiguousarray(given["kernel"].reshape(-1, dim).T)

    for side, parts in (("encoder", made.encoder), ("decoder", made.decoder)):
        embeddings = parts.embeddings[0] if side == "encoder" else parts.embeddings
        embeddings.weight = table
        parts.scale_embeddings = True
        parts.position_encodings.encodings = positions
        if pre_norm:
            norm(parts.layer_norm, params[side]["norm"])
        for i, target in enumerate(parts.layer):
            own = jax.tree.map(lambda leaf, i=i: leaf[i], stacks[side])
            kernel = own["attention"]["kernel"]  # [D, N, 3, H]: query, key and value of each head
            target.self_attention.linear[0].weight = np.concatenate([flat(kernel[:, :, k]) for k in range(3)])
            output(target.self_attention.linear[1], own["attention"]["output"])
            norm(target.self_attention.layer_norm, own["attention_norm"])
            if side == "decoder":
                cross = target.attention
                cross.linear[0].weight = flat(own["cross"]["query"])
                cross.linear[1].weight = np.concatenate([flat(own["cross"]["key_value"][:, :, k]) for k in range(2)])
                output(cross.linear[2], own["cross"]["output"])
                norm(cross.layer_norm, own["cross_norm"])
            for name, linear in (("up", target.ffn.linear_0), ("down", target.ffn.linear_1)):
                given = own["feed_forward"][name]
                linear.weight, linear.bias = np.ascontiguousarray(given["kernel"].T), given["bias"]
            norm(target.ffn.layer_norm, own["feed_forward_norm"])
    made.decoder.projection.weight = table
    made.register_source_vocabulary(list(pieces))
    made.register_target_vocabulary(list(pieces))
    made.config.add_source_eos, made.config.decoder_start_token = add_source_eos, "<s>"
    made.config.layer_norm_epsilon = norm_epsilon
    made.validate()
    made.optimize()
    return made


def of_run(translator: Any, *, positions: int = 512) -> Any:
    """Returns the specification of a trained translator's model, for sentences of up to `positions` tokens.

    Raises:
      ValueError: two pieces have one name.
    """
    from jaxformer import functional

    config = translator.net.config
    pieces = translator.tokenizer.pieces(range(config.target_vocab_size))
    if len(set(pieces)) < len(pieces):
        raise ValueError("the pieces of the vocabulary must have different names")
    return converted(
        translator.params,
        pieces,
        np.asarray(functional.sinusoidal(np.arange(positions), dim=config.d_model)),
        num_heads=config.num_heads,
        pre_norm=config.norm_position == "pre",
        norm_epsilon=config.norm.epsilon,
        add_source_eos=True,
    )
