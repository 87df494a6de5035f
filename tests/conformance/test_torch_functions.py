"""Functions of PyTorch, where it is installed: its own attention, and bugs in ours."""

import pytest

from jaxformer import conformance

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.parity


def attend(query, key, value, *, mask=None, bias=None, bug=""):
    logits = torch.einsum("btnh,bsnh->bnts", query, key) * query.shape[-1] ** -0.5
    if bias is not None:
        logits = logits + (bias.detach() if bug == "bias without gradient" else bias)
    if mask is not None:
        logits = logits.masked_fill(mask if bug == "mask inverted" else ~mask, -torch.inf)
    if bug == "inputs changed":
        value *= 2
    return torch.einsum("bnts,bsnj->btnj", logits.softmax(-1), value)


NAMES = ["values", "inputs kept", "mask", "bias", "gradients", "bias gradient", "second derivatives"]
BUGS = {"inputs changed": "inputs kept", "mask inverted": "mask", "bias without gradient": "bias gradient"}


def test_right_attention():
    report = conformance.check(attend, only=NAMES, dtypes=("float32", "bfloat16"))
    assert report.adapter.framework == "torch"
    assert report.of("passed") == NAMES, str(report)


@pytest.mark.parametrize("bug", BUGS)
def test_a_bug_is_found(bug):
    def wrong(query, key, value, *, mask=None, bias=None):
        return attend(query, key, value, mask=mask, bias=bias, bug=bug)

    (row,) = conformance.check(wrong, only=[BUGS[bug]], dtypes=("float32",)).rows
    assert row.status == "failed"
    assert "import torch" in row.code
