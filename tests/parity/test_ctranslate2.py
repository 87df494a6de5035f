"""A trained run written to CTranslate2: both find the same translations with the same scores."""

import os
import pathlib

import jax
import numpy as np
import pytest

import jaxformer
from jaxformer import demo, functional
from jaxformer.tasks.translation import Translator

ctranslate2 = pytest.importorskip("ctranslate2", reason="CTranslate2 is not installed: pip install ctranslate2")
pytestmark = pytest.mark.parity

NUMBER = 200
POSITIONS = 512
TIE = 1e-4


@pytest.fixture(scope="module")
def translator(tmp_path_factory):
    """That of the trained run that JAXFORMER_RUN names, else of a short training of the demo."""
    if run := os.environ.get("JAXFORMER_RUN"):
        return jaxformer.load(run)
    out = tmp_path_factory.mktemp("runs") / "run"
    sizes = {"d_model": 64, "d_ff": 128}
    train = {"steps": 300, "validate_every": 150, "checkpoint_every": 150}
    config = jaxformer.configure("demo", model=sizes, train=train, data={"grammar_pairs": 8000})
    jaxformer.train(config, out)
    return jaxformer.load(out)


def written(translator: Translator, folder: pathlib.Path) -> pathlib.Path:
    """The run in CTranslate2's format."""
    config, params = translator.net.config, translator.params
    layers = (config.num_encoder_layers, config.num_decoder_layers)
    pre = config.norm_position == "pre"
    spec = ctranslate2.specs.TransformerSpec.from_config(layers, config.num_heads, pre_norm=pre)
    table = np.asarray(params["decoder"]["embeddings"]["tokens"]["table"])
    positions = np.asarray(functional.sinusoidal(np.arange(POSITIONS), dim=config.d_model))
    flat = lambda x: np.asarray(x).reshape(config.d_model, -1).T  # [D, ...] to [out, in]

    def norm(target, given):
        target.gamma, target.beta = (np.asarray(given[name]) for name in ("scale", "bias"))

    def output(target, given):
        target.weight = np.asarray(given["kernel"]).reshape(-1, config.d_model).T

    for side, parts in (("encoder", spec.encoder), ("decoder", spec.decoder)):
        embeddings = parts.embeddings[0] if side == "encoder" else parts.embeddings
        embeddings.weight = table
        parts.scale_embeddings = True
        parts.position_encodings.encodings = positions
        if pre:
            norm(parts.layer_norm, params[side]["norm"])
        for i, layer in enumerate(parts.layer):
            own = jax.tree.map(lambda leaf, i=i: np.asarray(leaf[i]), params[side]["stack"]["layers"])
            kernel = own["attention"]["kernel"]  # [D, N, 3, H]: query, key and value of each head
            attention = layer.self_attention
            attention.linear[0].weight = np.concatenate([flat(kernel[:, :, k]) for k in range(3)])
            output(attention.linear[1], own["attention"]["output"])
            norm(attention.layer_norm, own["attention_norm"])
            if side == "decoder":
                cross = layer.attention
                cross.linear[0].weight = flat(own["cross"]["query"])
                cross.linear[1].weight = np.concatenate([flat(own["cross"]["key_value"][:, :, k]) for k in range(2)])
                output(cross.linear[2], own["cross"]["output"])
                norm(cross.layer_norm, own["cross_norm"])
            for name, linear in (("up", layer.ffn.linear_0), ("down", layer.ffn.linear_1)):
                linear.weight, linear.bias = own["feed_forward"][name]["kernel"].T, own["feed_forward"][name]["bias"]
            norm(layer.ffn.layer_norm, own["feed_forward_norm"])
    spec.decoder.projection.weight = table
    pieces = pieces_of(translator)
    spec.register_source_vocabulary(pieces)
    spec.register_target_vocabulary(pieces)
    spec.config.add_source_eos, spec.config.decoder_start_token = True, "<s>"
    spec.config.layer_norm_epsilon = config.norm_epsilon
    spec.validate()
    spec.optimize()
    folder.mkdir()
    spec.save(str(folder))
    return folder


def pieces_of(translator):
    """The pieces in the order of their ids; CTranslate2 wants the names `<s>`, `</s>` and `<unk>`, which they have."""
    pieces = translator.tokenizer.pieces(range(translator.net.config.target_vocab_size))
    assert len(set(pieces)) == len(pieces)
    return pieces


def test_all_hypotheses_of_200_sentences(translator, tmp_path):
    """Beam 4, lengths counted with the end: tokens of all four, but for near ties, which are counted."""
    theirs = ctranslate2.Translator(str(written(translator, tmp_path / "model")), device="cpu", inter_threads=1)
    texts = [pair.english for pair in demo.generate(20_000)[-NUMBER:]]
    tokens = [translator.tokenizer.pieces(ids) for ids in translator.tokenizer.encode(texts)]
    given = {"num_hypotheses": 4, "beam_size": 4, "length_penalty": 1.0, "min_decoding_length": 0}
    options = given | {"max_decoding_length": POSITIONS, "return_scores": True}
    expected = theirs.translate_batch(tokens, **options)
    found = translator.candidates(texts, n_best=4)
    equal = ties = 0
    for own, other in zip(found, expected, strict=True):
        pieces = [translator.tokenizer.pieces(candidate.tokens) for candidate in own]
        if pieces == other.hypotheses:
            equal += 1
            np.testing.assert_allclose([c.score for c in own], other.scores, atol=1e-4)
            continue
        gaps = np.abs(np.diff(sorted([c.score for c in own] + list(other.scores))))
        ties += bool((gaps[gaps > 1e-6] < TIE).any())
    print(f"{equal} of {NUMBER} equal, {ties} with near ties")
    assert equal >= 0.97 * NUMBER
    assert equal + ties == NUMBER
