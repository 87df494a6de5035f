"""What an adapter reads from a signature, layouts, and the kinds of masks."""

import jax
import numpy as np

from jaxformer import conformance
from tests.conformance import wrong

PLAIN = {"framework": "numpy", "dtypes": ("float32",)}


def only(function, name, **fields):
    return conformance.check(function, only=[name], **fields)[name]


def test_a_layout_and_the_kind_of_a_mask():
    """The same function with heads before positions, and with masks that are True where masked, or added."""

    def heads_first(query, key, value, *, mask):
        assert query.shape[:3] == (2, 4, 5)
        query, key, value = (x.swapaxes(1, 2) for x in (query, key, value))
        return wrong.attend(query, key, value, mask=~mask).swapaxes(1, 2)

    fields = {"layout": "BNTH", "mask_is": "inverted", **PLAIN}
    assert only(heads_first, "mask", **fields).status == "passed"
    added = lambda q, k, v, *, mask: wrong.attend(q, k, v, bias=mask)
    assert only(added, "mask", mask_is="additive", **PLAIN).status == "passed"
    assert only(added, "mask", mask_is="boolean", **PLAIN).status == "failed"


def test_one_argument_for_a_mask_and_a_bias():
    """As of PyTorch: Boolean or a number."""

    def attend(query, key, value, *, attn_mask):
        name = "mask" if attn_mask.dtype == bool else "bias"
        return wrong.attend(query, key, value, **{name: attn_mask})

    report = conformance.check(attend, only=["mask", "bias", "masks together"], bias="attn_mask", **PLAIN)
    assert report.of("passed") == ["mask", "bias", "masks together"]


def test_causal_from_the_last_key():
    function, fields = wrong.subject("causal from the other end")
    report = conformance.check(function, only=["causal, T != S", "cached step"], causal_from="last", **fields)
    assert report.of("passed") == ["causal, T != S", "cached step"]


def test_the_signature_says_what_a_function_takes():
    adapter = conformance.adapt(jax.nn.dot_product_attention)
    found = adapter.mask, adapter.causal, adapter.window, adapter.lengths, adapter.bias, adapter.scale
    assert found == ("mask", "is_causal", "local_window_size", "key_value_seq_lengths", "bias", "scale")
    assert (adapter.framework, adapter.segments, adapter.dropout) == ("jax", None, None)
    assert conformance.adapt(jax.nn.dot_product_attention, window=None).window is None
    assert conformance.adapt(np.dot).framework == "numpy"
