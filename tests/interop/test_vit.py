"""ViT: the names and shapes of its files."""

import numpy as np
import pytest

from jaxformer import interop
from tests.interop.small import NETS, arrays, check_refused, drawn, edited, save

D, F, K = 8, 12, 5


def linear(name, to, given):
    return {f"{name}.weight": (to, given), f"{name}.bias": (to,)}


def encoder(prefix):
    found = {f"{prefix}embeddings.cls_token": (1, 1, D), f"{prefix}embeddings.position_embeddings": (1, 3, D)}
    found[f"{prefix}embeddings.patch_embeddings.projection.weight"] = (D, 3, 4, 4)
    found[f"{prefix}embeddings.patch_embeddings.projection.bias"] = (D,)
    found |= {f"{prefix}layernorm.{x}": (D,) for x in ("weight", "bias")}
    for i in range(2):
        layer = f"{prefix}encoder.layer.{i}"
        for name in ("attention.attention.query", "attention.attention.key", "attention.attention.value"):
            found |= linear(f"{layer}.{name}", D, D)
        found |= linear(f"{layer}.attention.output.dense", D, D)
        found |= linear(f"{layer}.intermediate.dense", F, D) | linear(f"{layer}.output.dense", D, F)
        found |= {f"{layer}.layernorm_{x}.{y}": (D,) for x in ("before", "after") for y in ("weight", "bias")}
    return found


NAMES = {"vit": encoder(""), "vit classifier": encoder("vit.") | linear("classifier", K, D)}


@pytest.mark.parametrize("name", NAMES)
def test_names_and_shapes(tmp_path, name):
    save(tmp_path / "model", name)
    assert {name: x.shape for name, x in arrays(tmp_path / "model").items()} == NAMES[name]


def test_a_pooler_is_not_used(tmp_path):
    save(tmp_path / "model", "vit")
    edited(tmp_path / "model", lambda found: found.update({"pooler.dense.bias": np.ones(D, np.float32)}))
    assert interop.load_pretrained(tmp_path / "model").unused == ("pooler.dense.bias",)


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("vit", {"image_size": [8, 4, 4]}),
        ("vit", {"image_size": "8"}),
        ("vit", {"qkv_bias": False}),
    ],
)
def test_settings_without_a_counterpart_are_refused(tmp_path, name, settings):
    check_refused(tmp_path / "model", name, settings)


def test_labels_are_kept_if_there_is_one_for_each_class(tmp_path):
    for labels, kept in ((dict.fromkeys("01234", "cat"), True), ({"0": "cat"}, False)):
        net, params = NETS["vit classifier"], drawn(NETS["vit classifier"])
        folder = tmp_path / str(kept)
        interop.save_pretrained(folder, net, params, family="vit", settings={"id2label": labels})
        found = interop.load_pretrained(folder).settings["id2label"]
        assert len(found) == K
        assert (found == labels) == kept
