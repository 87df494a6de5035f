"""Products are counted as often as they run; the longest chain of dependent products is found."""

import jax
import jax.numpy as jnp
import pytest

from jaxformer import functional, modules, sharding
from jaxformer.planning.graph import products
from tests.modules.small import built, normal

SQUARE = jnp.ones((4, 4))


def xla(function, *args):
    """XLA's count of a program without loops."""
    return jax.jit(function).lower(*args).compile().cost_analysis()["flops"]


def recurrence(x, unrolled):
    step = lambda state, row: (row + state @ SQUARE, state @ SQUARE)
    state = jnp.zeros((3, 4))
    if not unrolled:
        return jax.lax.scan(step, state, x)[1]
    outputs = []
    for row in x:
        state, output = step(state, row)
        outputs.append(output)
    return jnp.stack(outputs)


@pytest.mark.parametrize("unrolled", [False, True])
def test_a_loop_counts_as_often_as_it_runs(unrolled):
    got = products(lambda x: recurrence(x, unrolled), normal(7, 3, 4))
    assert got == (7 * 2 * 2 * 3 * 4 * 4, 7)


@pytest.mark.parametrize("axes", [("data", "tensor"), ("data",)], ids="-".join)
def test_shards_count_on_every_device(axes):
    """Rows sharded over `data` are the same work as without a mesh; devices along another axis repeat it."""
    mesh, rows = sharding.mesh("data=4,tensor=2"), jax.sharding.PartitionSpec("data")
    mapped = jax.shard_map(
        lambda x: x @ SQUARE, mesh=mesh, in_specs=rows, out_specs=rows, axis_names=set(axes), check_vma=False
    )
    repeated = 2 if "tensor" in axes else 1
    assert products(mapped, normal(8, 4)) == (repeated * 2 * 8 * 4 * 4, 1)
    assert products(jax.pmap(jnp.matmul), normal(8, 4, 4), normal(8, 4, 4)) == (2 * 8 * 4 * 4 * 4, 1)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x @ SQUARE,
        lambda x: jnp.einsum("btd,bsd->bts", x, x),
        lambda x: functional.convolution(x, jnp.ones((1, 4, 5))),
        lambda x: functional.attention(x[:, :, None], x[:, :, None], x[:, :, None], implementation="reference"),
    ],
)
def test_xla_counts_alike(function):
    """XLA adds the softmax and other elementwise operations, a tenth here; the kernel of 1 has no padding."""
    x = normal(2, 128, 4)
    assert products(function, x).flops <= xla(function, x) <= products(function, x).flops * 1.8


def test_chains():
    """Products side by side do not wait for each other; calls, branches and gradients are looked into."""
    chain = lambda function: products(function, normal(4, 4)).in_a_row
    assert chain(lambda x: x @ SQUARE + x @ x) == 1
    assert chain(lambda x: jax.jit(jnp.matmul)(x @ x, x) @ x) == 3
    assert chain(lambda x: jax.lax.cond(x.sum() > 0, lambda x: x @ x @ x, lambda x: x, x)) == 2
    assert chain(jax.grad(lambda x: (x @ SQUARE @ SQUARE).sum())) == 4 - 2  # the values themselves are not needed
    assert chain(lambda x: jax.checkpoint(lambda y: y @ y)(x @ x)) == 2
    assert chain(lambda x: x) == 0


def test_a_carried_sum_is_not_a_chain_of_products():
    """In causal linear attention, products do not depend on those of earlier chunks; only their sum does."""
    x = normal(1, 64, 1, 4)
    count = lambda chunk: products(lambda x: functional.linear_attention(x, x, x, causal=True, chunk=chunk), x)
    assert count(4).in_a_row == count(16).in_a_row


def test_a_recurrent_layer_and_one_of_attention():
    """L steps, the first without a predecessor, and four products in a row at any length."""
    for length in (5, 9):
        module, params = built(lambda rngs: modules.RecurrentLayer(4, cell="gru", rngs=rngs))
        got = products(module.net.apply, params, normal(1, length, 4))
        assert got == (length * 2 * 2 * 3 * 4 * 4, length)
        module, params = built(lambda rngs: modules.AttentionLayer(modules.SelfAttention(4, 2, rngs=rngs)))
        got = products(module.net.apply, params, normal(1, length, 4))
        assert got == (8 * length * 4 * 4 + 4 * length**2 * 4, 4)


def test_experts_cost_as_much_as_one_network_for_each_choice():
    """Without a capacity; the gradients of inputs and of kernels cost as much again each."""
    tokens, dim, hidden, chosen = 6, 4, 8, 2
    experts = functional.Experts(jnp.ones((3, dim, hidden)), jnp.ones((3, hidden, dim)))

    def loss(x, experts):
        routing = functional.route(jnp.zeros((tokens, 3)), chosen)
        return functional.mixture_of_experts(x, routing, experts).sum()

    forward = 2 * chosen * tokens * 2 * dim * hidden
    assert products(loss, normal(tokens, dim), experts) == (forward, 2)
    assert products(jax.value_and_grad(loss, (0, 1)), normal(tokens, dim), experts).flops == 3 * forward


def test_a_loop_of_unknown_length_is_refused():
    until = lambda x: jax.lax.while_loop(lambda x: x.sum() < 1, lambda x: x @ x, x)
    with pytest.raises(ValueError, match="while loop have no known number"):
        products(until, normal(4, 4))
    assert products(lambda x: jax.lax.while_loop(lambda x: x.sum() < 1, lambda x: x + 1, x @ x), normal(4, 4))
