"""GPT-2: the names and shapes of its files, whose kernels are ``[in, out]``."""

import numpy as np

from jaxformer import interop
from tests.interop.small import arrays, check_shapes, edited, norm, save

D, F, V = 8, 12, 9


def test_names_and_shapes(tmp_path):
    expected = {"transformer.wte.weight": (V, D), "transformer.wpe.weight": (512, D), **norm("transformer.ln_f")}
    for i in range(2):
        layer = f"transformer.h.{i}"
        expected |= norm(f"{layer}.ln_1") | norm(f"{layer}.ln_2")
        shapes = {"attn.c_attn": (D, 3 * D), "attn.c_proj": (D, D), "mlp.c_fc": (D, F), "mlp.c_proj": (F, D)}
        for name, shape in shapes.items():
            expected |= {f"{layer}.{name}.weight": shape, f"{layer}.{name}.bias": shape[1:]}
    params = check_shapes(tmp_path / "model", "gpt2", expected)
    kernel = params["decoder"]["stack"]["layers"]["feed_forward"]["up"]["kernel"]
    np.testing.assert_array_equal(arrays(tmp_path / "model")["transformer.h.1.mlp.c_fc.weight"], kernel[1])


def test_second_names_of_settings(tmp_path):
    """Hugging Face also reads ``num_attention_heads``; no tensor's shape determines the number of heads."""
    save(tmp_path / "model", "gpt2")
    edited(tmp_path / "model", settings={"n_head": None, "num_attention_heads": 4, "hidden_size": 8})
    assert interop.load_pretrained(tmp_path / "model").net.config.num_heads == 4


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
