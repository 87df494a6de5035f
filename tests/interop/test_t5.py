"""T5: the names and shapes of its files, and the switches of its two versions."""

import json

import pytest

from jaxformer import interop
from tests.interop.small import NETS, check_shapes, edited, save

D, F, V = 8, 12, 9


def block(name, cross, width, gated):
    """The tensors of a layer; its heads together have this width."""
    found = {}
    for i, kind in enumerate(("SelfAttention", "EncDecAttention")[: 1 + cross]):
        found |= {f"{name}.layer.{i}.{kind}.{x}.weight": (width, D) for x in "qkv"}
        found |= {f"{name}.layer.{i}.{kind}.o.weight": (D, width), f"{name}.layer.{i}.layer_norm.weight": (D,)}
    network = f"{name}.layer.{1 + cross}"
    found |= {f"{network}.DenseReluDense.{x}.weight": (F, D) for x in (("wi_0", "wi_1") if gated else ("wi",))}
    return found | {f"{network}.DenseReluDense.wo.weight": (D, F), f"{network}.layer_norm.weight": (D,)}


def names(width, gated):
    bias = "block.0.layer.0.SelfAttention.relative_attention_bias.weight"
    found = {"shared.weight": (V, D)} | ({"lm_head.weight": (V, D)} if gated else {})
    for side, layers, cross in (("encoder", 2, 0), ("decoder", 1, 1)):
        found |= {f"{side}.{bias}": (32, 2), f"{side}.final_layer_norm.weight": (D,)}
        for i in range(layers):
            found |= block(f"{side}.block.{i}", cross, width, gated)
    return found


@pytest.mark.parametrize(("name", "expected"), [("t5", names(12, False)), ("t5 untied", names(8, True))])
def test_names_and_shapes(tmp_path, name, expected):
    check_shapes(tmp_path / "model", name, expected)


@pytest.mark.parametrize(
    ("settings", "scale"),
    [
        ({"tie_word_embeddings": True}, 8**-0.5),
        ({"tie_word_embeddings": False}, 1.0),
        ({"scale_decoder_outputs": False, "tie_word_embeddings": True}, 1.0),
        ({"scale_decoder_outputs": None, "tie_word_embeddings": True}, 1.0),
    ],
)
def test_the_scale_of_the_logits(tmp_path, settings, scale):
    """Version 5 of transformers has its own setting for it; in older files it follows from tied embeddings."""
    save(tmp_path / "model", "t5")
    path = tmp_path / "model" / "config.json"
    saved = json.loads(path.read_text())
    del saved["scale_decoder_outputs"]
    path.write_text(json.dumps(saved | settings))
    assert interop.load_pretrained(tmp_path / "model").net.config.output_scale == scale


def test_the_logits_of_mt5_have_no_scale(tmp_path):
    """Version 5 of transformers writes ``tie_word_embeddings`` as true for a file of mT5 that says false."""
    save(tmp_path / "model", "t5 untied", settings={"scale_decoder_outputs": False})
    for tied in (True, False, None):
        settings = {"model_type": "mt5", "tie_word_embeddings": tied, "scale_decoder_outputs": None}
        edited(tmp_path / "model", settings=settings)
        assert interop.load_pretrained(tmp_path / "model").net.config.output_scale == 1.0
    assert "scale_decoder_outputs" not in interop.FAMILIES["mt5"].settings(NETS["t5 untied"])
