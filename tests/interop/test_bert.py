"""BERT, RoBERTa, DistilBERT and ViT: names and shapes in their files."""

import chex
import numpy as np
import pytest
import safetensors.numpy

from jaxformer import interop
from jaxformer.errors import DataError
from jaxformer.interop import pretrained, tensors
from tests.interop.small import NETS, check_shapes, drawn, edited, linear, norm, save

D, F, V, K = 8, 12, 9, 5


def layers(prefix, attention, norms):
    """The tensors of two layers."""
    found = {}
    for i in range(2):
        layer = f"{prefix}encoder.layer.{i}"
        for name in ("query", "key", "value"):
            found |= linear(f"{layer}.attention.{attention}.{name}", D, D)
        found |= linear(f"{layer}.attention.output.dense", D, D)
        found |= linear(f"{layer}.intermediate.dense", F, D) | linear(f"{layer}.output.dense", D, F)
        for name in norms:
            found |= norm(f"{layer}.{name}")
    return found


def encoder(prefix, rows, types):
    found = norm(f"{prefix}embeddings.LayerNorm")
    for name, number in (("word", V), ("position", rows), ("token_type", types)):
        found[f"{prefix}embeddings.{name}_embeddings.weight"] = (number, D)
    return found | layers(prefix, "self", ("attention.output.LayerNorm", "output.LayerNorm"))


def image_encoder(prefix):
    found = {f"{prefix}embeddings.cls_token": (1, 1, D), f"{prefix}embeddings.position_embeddings": (1, 3, D)}
    patches = f"{prefix}embeddings.patch_embeddings.projection"
    found |= norm(f"{prefix}layernorm") | linear(patches, D, D) | {f"{patches}.weight": (D, 3, 4, 4)}
    return found | layers(prefix, "attention", ("layernorm_before", "layernorm_after"))


def distilled(prefix):
    found = norm(f"{prefix}embeddings.LayerNorm")
    for name, number in (("word", V), ("position", 512)):
        found[f"{prefix}embeddings.{name}_embeddings.weight"] = (number, D)
    for i in range(2):
        layer = f"{prefix}transformer.layer.{i}"
        for name in ("q", "k", "v", "out"):
            found |= linear(f"{layer}.attention.{name}_lin", D, D)
        found |= linear(f"{layer}.ffn.lin1", F, D) | linear(f"{layer}.ffn.lin2", D, F)
        found |= norm(f"{layer}.sa_layer_norm") | norm(f"{layer}.output_layer_norm")
    return found


DISTILBERT_HEAD = linear("vocab_transform", D, D) | norm("vocab_layer_norm") | {"vocab_projector.bias": (V,)}
HEAD = linear("cls.predictions.transform.dense", D, D) | norm("cls.predictions.transform.LayerNorm")
ROBERTA_HEAD = linear("lm_head.dense", D, D) | norm("lm_head.layer_norm")
NAMES = {
    "bert": encoder("", 512, 2),
    "bert masked": encoder("bert.", 512, 2) | HEAD | {"cls.predictions.bias": (V,)},
    "roberta": encoder("", 514, 1),
    "roberta masked": encoder("roberta.", 514, 1) | ROBERTA_HEAD | {"lm_head.bias": (V,)},
    "distilbert": distilled(""),
    "distilbert masked": distilled("distilbert.") | DISTILBERT_HEAD,
    "vit": image_encoder(""),
    "vit classifier": image_encoder("vit.") | linear("classifier", K, D),
}


@pytest.mark.parametrize("name", NAMES)
def test_names_and_shapes(tmp_path, name):
    check_shapes(tmp_path / "model", name, NAMES[name])


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


def test_tying_does_not_matter_without_a_head(tmp_path):
    save(tmp_path / "model", "bert")
    edited(tmp_path / "model", settings={"tie_word_embeddings": False})
    interop.load_pretrained(tmp_path / "model")


def test_only_the_head_of_a_roberta_needs_its_activation(tmp_path):
    save(tmp_path / "model", "roberta")
    edited(tmp_path / "model", settings={"hidden_act": "relu"})
    assert interop.load_pretrained(tmp_path / "model").net.config.activation == "relu"


@pytest.mark.parametrize(("family", "name"), [("xlm-roberta", "XLMRoberta"), ("camembert", "Camembert")])
def test_families_of_roberta_name_their_own_classes(family, name):
    assert pretrained.config_json(NETS["roberta masked"], family)["architectures"] == [f"{name}ForMaskedLM"]


def test_a_bias_without_a_dimension_is_refused(tmp_path):
    """The number of classes is its length."""
    (tmp_path / "config.json").write_text('{"model_type": "vit"}')
    safetensors.numpy.save_file({"classifier.bias": np.array(1.0, np.float32)}, tmp_path / tensors.SINGLE)
    with pytest.raises(DataError, match=r"config\.json describes no model: tuple index out of range"):
        interop.load_pretrained(tmp_path)


def test_labels_are_kept_if_there_is_one_for_each_class(tmp_path):
    for labels, kept in ((dict.fromkeys("01234", "cat"), True), ({"0": "cat"}, False), (None, False)):
        net, params = NETS["vit classifier"], drawn(NETS["vit classifier"])
        folder = tmp_path / f"{kept} {labels is None}"
        interop.save_pretrained(folder, net, params, family="vit", settings={"id2label": labels})
        found = interop.load_pretrained(folder).settings["id2label"]
        assert len(found) == K
        assert (found == labels) == kept
