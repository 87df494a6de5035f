"""BART and its relatives: names and shapes in their files."""

import chex
import ml_dtypes
import numpy as np
import pytest

from jaxformer import functional, interop
from jaxformer.errors import DataError
from tests.interop.small import arrays, check_shapes, edited, linear, norm, save

D, F, V = 8, 12, 9


def block(name, cross):
    """The tensors of a layer."""
    found = norm(f"{name}.final_layer_norm") | linear(f"{name}.fc1", F, D) | linear(f"{name}.fc2", D, F)
    for kind in ("self_attn", "encoder_attn")[: 1 + cross]:
        found |= norm(f"{name}.{kind}_layer_norm")
        for projection in ("q_proj", "k_proj", "v_proj", "out_proj"):
            found |= linear(f"{name}.{kind}.{projection}", D, D)
    return found


BLOCKS = {
    name: shape
    for layer, cross in (("encoder.layers.0", 0), ("encoder.layers.1", 0), ("decoder.layers.0", 1))
    for name, shape in block(f"model.{layer}", cross).items()
} | {"final_logits_bias": (1, V)}
SIDES = ("model.encoder", "model.decoder")
TABLE = {"model.shared.weight": (V, D)}
FINAL = {f"{side}.layer_norm.{x}": (D,) for side in SIDES for x in ("weight", "bias")}
EMBEDDED = {f"{side}.layernorm_embedding.{x}": (D,) for side in SIDES for x in ("weight", "bias")}
APART = {f"{side}.embed_tokens.weight": (V, D) for side in SIDES}


def positions(rows):
    return {f"{side}.embed_positions.weight": (rows, D) for side in SIDES}


NAMES = {
    "bart": BLOCKS | TABLE | EMBEDDED | positions(9),
    "mbart": BLOCKS | TABLE | EMBEDDED | FINAL | positions(514),
    "marian": BLOCKS | TABLE | positions(512),
    "marian apart": BLOCKS | APART | {"lm_head.weight": (V, D)} | positions(512),
    "marian decoder": BLOCKS | APART | positions(512),
    "bart inputs": BLOCKS | TABLE | APART | EMBEDDED | positions(514) | {"lm_head.weight": (V, D)},
    "pegasus": BLOCKS | TABLE | FINAL | positions(512),
    "m2m_100": {name: shape for name, shape in BLOCKS.items() if name != "final_logits_bias"} | TABLE | FINAL,
}


@pytest.mark.parametrize("name", NAMES)
def test_names_and_shapes(tmp_path, name):
    check_shapes(tmp_path / "model", name, NAMES[name])


def test_sinusoids_in_a_file_are_compared(tmp_path):
    save(tmp_path / "model", "marian")
    name = "model.encoder.embed_positions.weight"
    edited(tmp_path / "model", lambda found: found.update({name: found[name] + 0.01}))
    with pytest.raises(DataError, match="does not hold the values that the model computes"):
        interop.load_pretrained(tmp_path / "model")
    edited(tmp_path / "model", lambda found: found.update({name: np.full_like(found[name], np.nan)}))
    with pytest.raises(DataError, match="does not hold the values that the model computes"):
        interop.load_pretrained(tmp_path / "model")
    edited(tmp_path / "model", lambda found: found.pop(name))
    interop.load_pretrained(tmp_path / "model")


@pytest.mark.parametrize("dtype", ["float16", ml_dtypes.bfloat16])
def test_sinusoids_of_half_precision_are_accepted(tmp_path, dtype):
    """Models of transformers that were saved in half precision hold rounded sinusoids."""
    _, params = save(tmp_path / "model", "pegasus")
    half = lambda found: found.update({name: x.astype(dtype) for name, x in found.items() if "embed_positions" in name})
    edited(tmp_path / "model", half)
    chex.assert_trees_all_equal(interop.load_pretrained(tmp_path / "model").params, params)


def test_sinusoids_are_computed_only_for_a_file_that_holds_them(tmp_path, monkeypatch):
    """A ``config.json`` alone must not create a large array."""
    save(tmp_path / "model", "marian")
    monkeypatch.setattr(functional, "sinusoidal", lambda *args, **kwargs: pytest.fail("computed"))
    edited(tmp_path / "model", settings={"max_position_embeddings": 2**24})
    with pytest.raises(DataError, match="does not hold the values"):
        interop.load_pretrained(tmp_path / "model")
    edited(tmp_path / "model", lambda found: [found.pop(name) for name in positions(512)])
    interop.load_pretrained(tmp_path / "model")


def test_a_missing_bias_of_the_logits_is_zero(tmp_path):
    save(tmp_path / "model", "bart")
    edited(tmp_path / "model", lambda found: found.pop("final_logits_bias"))
    assert not interop.load_pretrained(tmp_path / "model").params["decoder"]["output_bias"].any()


def test_repeated_tables_must_be_equal(tmp_path):
    save(tmp_path / "model", "bart")
    table = arrays(tmp_path / "model")["model.shared.weight"]
    edited(tmp_path / "model", lambda found: found.update({"lm_head.weight": table}))
    interop.load_pretrained(tmp_path / "model")
    broken = np.where(np.arange(len(table))[:, None], table, np.float32("nan"))  # equal, too
    tables = dict.fromkeys(("lm_head.weight", "model.shared.weight"), broken)
    edited(tmp_path / "model", lambda found: found.update(tables))
    interop.load_pretrained(tmp_path / "model")
    edited(tmp_path / "model", lambda found: found.update(dict.fromkeys(tables, table)))
    edited(tmp_path / "model", lambda found: found.update({"lm_head.weight": table + np.float32(1)}))
    with pytest.raises(DataError, match=r"'lm_head\.weight' differs from 'model\.shared\.weight'"):
        interop.load_pretrained(tmp_path / "model")
