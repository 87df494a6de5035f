"""CTranslate2's format, read by a few lines here; `tests/parity/test_ctranslate2.py` has the library read it."""

import dataclasses
import json
import struct

import jax
import numpy as np
import pytest

from jaxformer import models, pure
from jaxformer.errors import ConfigError
from jaxformer.interop import ctranslate2, packing
from jaxformer.models import choices, families
from tests.interop.small import NETS, PAIR, SIZES, drawn

WORDS = ctranslate2.Vocabulary([f"<{i}>" for i in range(9)], "<1>", "<2>", "<3>")
DTYPES = ("<f4", "i1", "<i2", "<i4")


def read(path):
    """Returns the name and the revision of the format, the arrays and the aliases."""
    data, place = path.read_bytes(), 0

    def number(kind):
        nonlocal place
        (value,) = struct.unpack_from(kind, data, place)
        place += struct.calcsize(kind)
        return value

    def text():
        nonlocal place
        size = number("<H")
        place += size
        return data[place - size : place - 1].decode()

    assert number("<I") == 6
    about, arrays = (text(), number("<I")), {}
    for _ in range(number("<I")):
        name, shape = text(), [number("<I") for _ in range(number("B"))]
        kind, size = DTYPES[number("B")], number("<I")
        arrays[name] = np.frombuffer(data[place : place + size], kind).reshape(shape)
        place += size
    aliases = {text(): text() for _ in range(number("<I"))}
    assert place == len(data)
    return about, arrays, aliases


def test_the_file_has_every_parameter(tmp_path):
    net = NETS["bart"]
    params = drawn(net)
    ctranslate2.write(tmp_path, net, ctranslate2.variables(net, params, WORDS), WORDS)
    about, arrays, aliases = read(tmp_path / "model.bin")
    assert about == ("TransformerSpec", 7)
    assert aliases == dict.fromkeys(
        ("encoder/embeddings_0/weight", "decoder/projection/weight"), "decoder/embeddings/weight"
    )
    assert sum(x.size for x in arrays.values() if x.ndim) + 8 * 2 * 2 == sum(x.size for x in jax.tree.leaves(params))
    heads = params["encoder"]["stack"]["layers"]["attention"]
    queries, keys, values = packing.GROUPS.save(heads["kernel"][1], 3)
    found = arrays["encoder/layer_1/self_attention/linear_0/weight"]
    np.testing.assert_array_equal(found, np.concatenate([queries, keys, values]))
    np.testing.assert_array_equal(found[8:16], keys)
    table = params["decoder"]["embeddings"]["positions"]["table"]
    np.testing.assert_array_equal(arrays["decoder/position_encodings/encodings"], table[2:])  # after its offset
    np.testing.assert_array_equal(arrays["decoder/projection/bias"], params["decoder"]["output_bias"])
    settings = json.loads((tmp_path / "config.json").read_text())
    assert (settings["decoder_start_token"], settings["add_source_eos"]) == ("<1>", False)
    assert json.loads((tmp_path / "shared_vocabulary.json").read_text()) == WORDS.pieces


def test_rows_of_a_matrix_in_int8_have_their_own_scales():
    x = np.array([[1.0, -2.0, 0.5], [0.0, 0.0, 0.0], [1e-3, 5e-4, 0.0]], "f4")
    found = ctranslate2.quantized({"a/weight": x, "a/bias": x[0], "b/weight": "a/weight"})
    np.testing.assert_array_equal(found["a/weight"], [[64, -127, 32], [0, 0, 0], [127, 64, 0]])
    np.testing.assert_allclose(found["a/weight"] / found["a/weight_scale"][:, None], x, atol=2 / 254 + 1e-6)
    assert found["a/bias"].dtype == np.float32
    assert found["b/weight"] == "a/weight"


NORM = choices.LayerNorm(form="deviation")
LACKING = [
    ({"norm": NORM}, "norm layer"),
    ({"norm_position": "sandwich"}, "norm_position sandwich"),
    ({"norm_position": "deep"}, "norm_position deep"),
    ({"positions": choices.Alibi()}, "positions alibi"),
    ({"positions": choices.RelativeKeys()}, "positions relative_keys"),
    ({"positions": choices.TransformerXL()}, "positions transformer_xl"),
    ({"positions": choices.Rotary(scaling=choices.LinearScaling(2.0))}, "positions rotary"),
    ({"feed_forward": choices.Experts()}, "feed_forward experts"),
    ({"attention_soft_cap": 9.0}, "attention_soft_cap 9.0"),
    ({"attention_window": 4}, "attention_window 4"),
    ({"qk_norm": True}, "qk_norm True"),
    ({"attention_sinks": True}, "attention_sinks True"),
]


@pytest.mark.parametrize(("changes", "named"), LACKING, ids=lambda x: x if isinstance(x, str) else "")
def test_what_ctranslate2_lacks_is_refused(changes, named):
    config = dataclasses.replace(families.marian(9, **PAIR), **changes)
    net = pure(models.EncoderDecoder, config)
    with pytest.raises(ConfigError, match=f"CTranslate2 cannot express model.{named} of this model"):
        ctranslate2.variables(net, net.shapes, WORDS)


def test_language_models_that_it_lacks_are_refused():
    """Its search takes a prompt by T5's positions wrongly."""
    for changes, named in (({"causal": False}, "causal False"), ({"positions": choices.T5()}, "positions t5")):
        net = pure(models.LanguageModel, families.gpt2(9, **SIZES, num_layers=1, **changes))
        with pytest.raises(ConfigError, match=rf"model\.{named}"):
            ctranslate2.check(net)
    with pytest.raises(ConfigError, match="no MaskedLanguageModel"):
        ctranslate2.check(NETS["bert masked"])


def test_a_vocabulary_that_does_not_fit_is_refused():
    net = NETS["gpt2"]
    params = drawn(net)
    with pytest.raises(ConfigError, match=r"has 8 tokens, but the tables of the model have \[9\]"):
        ctranslate2.variables(net, params, dataclasses.replace(WORDS, pieces=WORDS.pieces[:8]))
    with pytest.raises(ConfigError, match="two tokens of this vocabulary have one name"):
        ctranslate2.variables(net, params, dataclasses.replace(WORDS, pieces=[*WORDS.pieces[:8], "<1>"]))
