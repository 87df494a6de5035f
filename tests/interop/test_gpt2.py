"""GPT-2: the names and shapes of its files, whose kernels are ``[in, out]``."""

import numpy as np
import pytest

from jaxformer import interop
from jaxformer.errors import DataError
from tests.interop.small import arrays, check_refused, edited, save

D, F, V = 8, 12, 9


def test_names_and_shapes(tmp_path):
    _, params = save(tmp_path / "model", "gpt2")
    found = arrays(tmp_path / "model")
    expected = {"transformer.wte.weight": (V, D), "transformer.wpe.weight": (512, D)}
    expected |= {f"transformer.ln_f.{x}": (D,) for x in ("weight", "bias")}
    for i in range(2):
        layer = f"transformer.h.{i}"
        expected |= {f"{layer}.{norm}.{x}": (D,) for norm in ("ln_1", "ln_2") for x in ("weight", "bias")}
        for name, given, to in (
            ("attn.c_attn", D, 3 * D),
            ("attn.c_proj", D, D),
            ("mlp.c_fc", D, F),
            ("mlp.c_proj", F, D),
        ):
            expected |= {f"{layer}.{name}.weight": (given, to), f"{layer}.{name}.bias": (to,)}
    assert {name: x.shape for name, x in found.items()} == expected
    kernel = params["decoder"]["stack"]["layers"]["feed_forward"]["up"]["kernel"]
    np.testing.assert_array_equal(found["transformer.h.1.mlp.c_fc.weight"], kernel[1])


def test_the_mask_of_old_files_is_not_a_parameter(tmp_path):
    save(tmp_path / "model", "gpt2")
    mask = {"transformer.h.0.attn.bias": np.tri(4, dtype=np.float32), "transformer.h.1.attn.masked_bias": np.zeros(1)}
    edited(tmp_path / "model", lambda found: found.update(mask))
    assert interop.load_pretrained(tmp_path / "model").unused == tuple(mask)


def test_second_names_of_settings(tmp_path):
    """Hugging Face also reads ``num_attention_heads``; no tensor's shape determines the number of heads."""
    save(tmp_path / "model", "gpt2")
    edited(tmp_path / "model", settings={"n_head": None, "num_attention_heads": 4, "hidden_size": 8})
    assert interop.load_pretrained(tmp_path / "model").net.config.num_heads == 4


def test_the_default_width_is_four_times_that_of_the_model(tmp_path):
    save(tmp_path / "model", "gpt2")
    edited(tmp_path / "model", settings={"n_inner": None})
    with pytest.raises(DataError, match=r"has shape \(12, 8\); config\.json implies \(32, 8\)"):
        interop.load_pretrained(tmp_path / "model")


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("gpt2", {"add_cross_attention": True}),
        ("gpt2", {"num_attention_heads": 4}),
        ("gpt2", {"is_causal": False}),
        ("gpt2", {"scale_attn_by_inverse_layer_idx": True}),
    ],
)
def test_settings_without_a_counterpart_are_refused(tmp_path, name, settings):
    check_refused(tmp_path / "model", name, settings)


def test_embeddings_have_their_own_rate_of_dropout(tmp_path):
    save(tmp_path / "model", "gpt2")
    edited(tmp_path / "model", settings={"embd_pdrop": 0.0, "resid_pdrop": 0.3})
    found = interop.load_pretrained(tmp_path / "model")
    assert (found.net.config.dropout, found.net.config.embedding_dropout) == (0.3, 0.0)
    embeddings = found.net.bind(found.params).decoder.embeddings
    assert embeddings.dropout == 0.0
    interop.save_pretrained(tmp_path / "again", found.net, found.params, family="gpt2")
    again = interop.load_pretrained(tmp_path / "again")
    assert (again.settings["embd_pdrop"], again.settings["resid_pdrop"]) == (0.0, 0.3)
    assert again.net.config == found.net.config
