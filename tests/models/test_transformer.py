"""What all transformers share: settings that are checked where they are made, and the choice of what was captured."""

import copy

import pytest

from jaxformer.models.transformer import select
from tests.models.small import CONFIGS, LANGUAGE_CONFIGS


@pytest.mark.parametrize("config", [CONFIGS["post"], LANGUAGE_CONFIGS["untied"]], ids=lambda c: type(c).__name__)
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_heads": 3}, r"d_model \(8\) must be divisible by num_heads \(3\)"),
        ({"num_heads": -2}, "num_heads must be at least 1, got -2"),
        ({"d_model": 0}, "d_model must be at least 1, got 0"),
        ({"d_ff": 0}, "d_ff must be at least 1, got 0"),
        ({"max_positions": 0}, "max_positions must be at least 1, got 0"),
        ({"d_model": 7, "num_heads": 1}, r"sinusoidal positions need an even d_model, got 7"),
        ({"positions": "sinusodial"}, r"positions must be one of \('none', 'sinusoidal', .*\), got 'sinusodial'"),
        (
            {"norm_position": "before"},
            r"norm_position must be one of \('post', 'pre', 'sandwich', 'deep'\), got 'before'",
        ),
        ({"positions": "normalized"}, r"must not be 'normalized', t / \(N - 1\), in a decoder"),
        ({"positions": "rotary", "head_dim": 3}, "rotary positions need an even head dim, got 3"),
        ({"num_kv_heads": 3}, r"num_heads \(2\) must be divisible by num_kv_heads \(3\)"),
        ({"compute_dtype": "float16"}, r"compute_dtype must be one of \('float32', 'bfloat16'\), got 'float16'"),
        ({"dropout": 1.0}, r"dropout must be in \[0, 1\), got 1.0"),
        ({"attention_dropout": -0.1}, r"attention_dropout must be in \[0, 1\), got -0.1"),
    ],
)
def test_configurations_that_make_no_model(config, change, message):
    """Checked where it is made, not at the first use; the type hook of the tests would be there before it."""
    changed = copy.copy(config)
    for name, value in change.items():
        object.__setattr__(changed, name, value)
    with pytest.raises(ValueError, match=message):
        changed.__post_init__()


def test_select():
    assert select({"a": 1, "b": 2}, ["b"]) == {"b": 2}
    with pytest.raises(ValueError, match=r"unknown attention names \['c'\]; there are \['a', 'b'\]"):
        select({"b": 2, "a": 1}, ["c", "a"])
