"""RNN, GRU and LSTM against PyTorch's, with copied weights: values, last states and gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer import modules
from tests.modules.small import built
from tests.parity.tensors import array, close, leaf

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install torch")
pytestmark = pytest.mark.parity

B, T, D, H, LAYERS = 3, 6, 4, 5, 2
LENGTHS = np.array([6, 4, 1])
VALID = jnp.asarray(np.arange(T) < LENGTHS[:, None])


def weight_of(theirs, name, layer, direction):
    suffix = "_reverse" if direction == "backward" else ""
    tensor = {"input": "weight_ih", "hidden": "weight_hh", "input_bias": "bias_ih", "hidden_bias": "bias_hh"}[name]
    return getattr(theirs, f"{tensor}_l{layer}{suffix}")


def converted(name, tensor):
    """A tensor of PyTorch in the layout of this library."""
    value = tensor.detach().numpy()
    gates = value.shape[0] // H
    return value.reshape(gates, H) if name.endswith("bias") else value.reshape(gates, H, -1).transpose(2, 0, 1)


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("cell", ["rnn", "gru", "lstm"])
def test_values_states_and_gradients(cell, bidirectional):
    kind = {"rnn": torch.nn.RNN, "gru": torch.nn.GRU, "lstm": torch.nn.LSTM}[cell]
    torch.manual_seed(0)
    theirs = kind(D, H, LAYERS, bidirectional=bidirectional, batch_first=True)
    options = {"cell": cell, "bidirectional": bidirectional}
    module, params = built(lambda rngs: modules.RecurrentStack(D, H, LAYERS, rngs=rngs, **options))
    names = [
        (str(layer), direction, name)
        for layer in range(LAYERS)
        for direction in (("forward", "backward") if bidirectional else ("forward",))
        for name in ("input", "hidden", "input_bias", "hidden_bias")
    ]
    for layer, direction, name in names:
        tensor = weight_of(theirs, name, layer, direction)
        params["layers"][layer][direction][name] = jnp.asarray(converted(name, tensor))

    x, upstream = array(B, T, D), array(B, T, H * (1 + bidirectional), seed=1)
    tensor = leaf(x)
    packed = torch.nn.utils.rnn.pack_padded_sequence(tensor, torch.tensor(LENGTHS), batch_first=True)
    packed, last = theirs(packed)
    outputs, _ = torch.nn.utils.rnn.pad_packed_sequence(packed, batch_first=True)
    last = last if isinstance(last, tuple) else (last,)
    ((outputs * torch.tensor(upstream)).sum() + sum((x**2).sum() for x in last)).backward()

    def loss(params, x):
        outputs, states = module.net.apply(params, x, valid=VALID)
        squares = sum((leaf**2).sum() for leaf in jax.tree.leaves(states))
        return (outputs * upstream).sum() + squares, (outputs, states)

    (gradients, d_x), (got, states) = jax.jit(jax.grad(loss, (0, 1), has_aux=True))(params, x)
    close(got, outputs)
    close(np.stack([state.hidden for state in states]), last[0])
    if cell == "lstm":
        close(np.stack([state.memory for state in states]), last[1])
    close(d_x, tensor.grad)
    for layer, direction, name in names:
        close(
            gradients["layers"][layer][direction][name], converted(name, weight_of(theirs, name, layer, direction).grad)
        )
