"""BERT and RoBERTa: names and shapes in their files."""

import chex
import numpy as np
import pytest

from jaxformer import interop
from jaxformer.errors import DataError
from jaxformer.interop import pretrained
from tests.interop.small import NETS, arrays, check_refused, edited, save

D, F, V = 8, 12, 9


def linear(name, to, given):
    return {f"{name}.weight": (to, given), f"{name}.bias": (to,)}


def norm(name):
    return {f"{name}.weight": (D,), f"{name}.bias": (D,)}


def encoder(prefix, rows, types):
    found = norm(f"{prefix}embeddings.LayerNorm")
    for name, number in (("word", V), ("position", rows), ("token_type", types)):
        found[f"{prefix}embeddings.{name}_embeddings.weight"] = (number, D)
    for i in range(2):
        layer = f"{prefix}encoder.layer.{i}"
        for name in ("query", "key", "value"):
            found |= linear(f"{layer}.attention.self.{name}", D, D)
        found |= linear(f"{layer}.attention.output.dense", D, D) | norm(f"{layer}.attention.output.LayerNorm")
        found |= linear(f"{layer}.intermediate.dense", F, D)
        found |= linear(f"{layer}.output.dense", D, F) | norm(f"{layer}.output.LayerNorm")
    return found


HEAD = linear("cls.predictions.transform.dense", D, D) | norm("cls.predictions.transform.LayerNorm")
ROBERTA_HEAD = linear("lm_head.dense", D, D) | norm("lm_head.layer_norm")
NAMES = {
    "bert": encoder("", 512, 2),
    "bert masked": encoder("bert.", 512, 2) | HEAD | {"cls.predictions.bias": (V,)},
    "roberta": encoder("", 514, 1),
    "roberta masked": encoder("roberta.", 514, 1) | ROBERTA_HEAD | {"lm_head.bias": (V,)},
}


@pytest.mark.parametrize("name", NAMES)
def test_names_and_shapes(tmp_path, name):
    save(tmp_path / "model", name)
    assert {name: x.shape for name, x in arrays(tmp_path / "model").items()} == NAMES[name]


def test_older_and_further_tensors(tmp_path):
    """Buffers and heads that have no parameter are listed; repeated tables must be equal."""
    _, params = save(tmp_path / "model", "bert masked")

    def change(found):
        found["bert.embeddings.LayerNorm.gamma"] = found.pop("bert.embeddings.LayerNorm.weight")
        found["bert.embeddings.position_ids"] = np.arange(3)
        found["bert.pooler.dense.weight"] = np.ones((8, 8), np.float32)
        found["cls.predictions.decoder.weight"] = found["bert.embeddings.word_embeddings.weight"]

    edited(tmp_path / "model", change)
    found = interop.load_pretrained(tmp_path / "model")
    chex.assert_trees_all_equal(found.params, params)
    assert found.unused == ("bert.embeddings.position_ids", "bert.pooler.dense.weight")
    edited(tmp_path / "model", lambda found: found.update({"cls.predictions.decoder.weight": np.ones((9, 8), "f4")}))
    with pytest.raises(DataError, match=r"'cls\.predictions\.decoder\.weight' differs"):
        interop.load_pretrained(tmp_path / "model")


@pytest.mark.parametrize(("name", "head"), [("bert masked", "cls.predictions"), ("roberta masked", "lm_head")])
def test_the_bias_of_the_logits_may_have_its_other_name(tmp_path, name, head):
    _, params = save(tmp_path / "model", name)
    edited(tmp_path / "model", lambda found: found.update({f"{head}.decoder.bias": found.pop(f"{head}.bias")}))
    chex.assert_trees_all_equal(interop.load_pretrained(tmp_path / "model").params, params)


def test_tying_does_not_matter_without_a_head(tmp_path):
    for name in ("bert", "bert masked"):
        save(tmp_path / name, name)
        edited(tmp_path / name, settings={"tie_word_embeddings": False})
    interop.load_pretrained(tmp_path / "bert")
    with pytest.raises(DataError, match="tie_word_embeddings"):
        interop.load_pretrained(tmp_path / "bert masked")


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("bert", {"position_embedding_type": "relative_key"}),
        ("bert", {"is_decoder": True}),
        ("roberta", {"is_causal": True}),
        ("bert", {"type_vocab_size": 0}),
        ("roberta", {"max_position_embeddings": 2}),
        ("roberta masked", {"hidden_act": "relu"}),
    ],
)
def test_settings_without_a_counterpart_are_refused(tmp_path, name, settings):
    check_refused(tmp_path / "model", name, settings)


def test_only_the_head_of_a_roberta_needs_its_activation(tmp_path):
    save(tmp_path / "model", "roberta")
    edited(tmp_path / "model", settings={"hidden_act": "relu"})
    assert interop.load_pretrained(tmp_path / "model").net.config.activation == "relu"


@pytest.mark.parametrize(("family", "name"), [("xlm-roberta", "XLMRoberta"), ("camembert", "Camembert")])
def test_families_of_roberta_name_their_own_classes(family, name):
    assert pretrained.config_json(NETS["roberta masked"], family)["architectures"] == [f"{name}ForMaskedLM"]
