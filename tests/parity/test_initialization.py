"""The experiment on initialization: its training in PyTorch has the loss of the library with the same parameters."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.initialization import __main__ as command
from jaxformer import functional, models
from jaxformer.data.batch import Batch
from jaxformer.modules.pure import pure
from jaxformer.tokenizers.special_tokens import SpecialTokens
from tests.parity.tensors import close, fill, fill_block

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install torch")
pytestmark = pytest.mark.parity


def test_the_same_parameters_have_the_same_loss():
    """The value and the gradient of the table, without dropout, with padding and an empty row."""
    from experiments.initialization.pytorch import Translator, cross_entropy

    sizes = {"d_model": 16, "num_heads": 4, "d_ff": 24, "num_encoder_layers": 2, "num_decoder_layers": 2}
    config = models.EncoderDecoderConfig(50, 50, **sizes, attention_bias=True, norm_position="post")
    net = pure(models.EncoderDecoder, config)
    params = net.init(jax.random.key(0))
    theirs = Translator(config, 50, 12)
    fill(theirs.table.weight, params["decoder"]["embeddings"]["tokens"]["table"])
    for side in ("encoder", "decoder"):
        stacked = params[side]["stack"]["layers"]
        for i, layer in enumerate(getattr(theirs, side)):
            fill_block(layer, jax.tree.map(lambda x, i=i: x[i], stacked), cross=side == "decoder")
    draw = np.random.default_rng(0)
    sentences = [[draw.integers(4, 50, n).astype(np.int32) for n in lengths] for lengths in ((7, 3), (5, 9))]
    batch = Batch.from_tokens(*sentences, (3, 8, 12), SpecialTokens())
    device = jax.tree.map(jnp.asarray, batch)

    def ours(params):
        loss = functional.CrossEntropy(smoothing=0.1)
        return net.bind(params).loss(device.source, device.target, labels=device.labels, loss=loss)[0]

    total, count = cross_entropy(theirs.eval(), batch, smoothing=0.1)
    total.backward()
    value, slope = jax.value_and_grad(ours)(params)
    assert count == batch.target.valid.sum()
    close(value, total)
    close(slope["decoder"]["embeddings"]["tokens"]["table"], theirs.table.weight.grad, 1e-3)


def test_the_smoke_version_trains_in_pytorch(tmp_path, capsys):
    assert command.main(["--smoke", "--out", str(tmp_path), "--cases", "post, fairseq", "--torch"]) == 0
    lines = capsys.readouterr().out.splitlines()
    ours, theirs = ([float(x) for x in line.split("|")[2:4]] for line in lines if line.startswith("| post"))
    assert theirs[1] < theirs[0]
    np.testing.assert_allclose(ours, theirs, atol=0.5)  # other parameters of one distribution: 0.15 from seed to seed
