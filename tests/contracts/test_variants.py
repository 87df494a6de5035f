"""Every public function computes the same plainly, under `jax.jit`, and under `jax.pmap` on two devices."""

import functools
import inspect

import chex
import jax
import jax.numpy as jnp

from jaxformer import functional as F
from jaxformer import masks
from tests.modules.small import normal

B, T, D, N, H, V = 2, 4, 4, 2, 4, 5
X, HEADS, LOGITS = normal(B, T, D), [normal(B, T, N, H, seed=i) for i in range(3)], normal(B, T, V)
SCALE, SQUARE = normal(D), normal(D, D)
WEIGHTS = jax.nn.softmax(normal(B, T, T))
VALID, LABELS = jnp.array([[True] * 4, [True, True, False, False]]), jnp.array([[0, 3, 1, 4], [2, 2, 0, 1]])
POSITIONS = jnp.arange(B * T).reshape(B, T)
KEY = jax.random.key(0)
CELL = F.RecurrentWeights(*(normal(*shape) for shape in ((D, 4, H), (H, 4, H), (4, H), (4, H))))
STATE = F.recurrent_start(F.lstm_cell, (B, H))


def loss(params, batch, key=None):
    return ((batch["x"] @ params) ** 2).sum(), batch["valid"].sum().astype(jnp.float32)


def experts(x, up, down):
    return F.mixture_of_experts(x, F.route(x, 2), F.Experts(up, None, down, None))


NORM = lambda x: F.rms_norm(x, SCALE)
PAIRS = (HEADS[0], HEADS[1])
CASES = {
    "additive_attention": (lambda x, w, v: F.additive_attention(x, x, x, w_query=w, w_key=w, v=v), X, SQUARE, SCALE),
    "additive_similarity": (F.additive_similarity, X[0], X[1], SCALE),
    "at_positions": (lambda q, k, p: F.at_positions(q, k, query_positions=p, mask=masks.causal())[0].dense(T, T), *PAIRS, POSITIONS),
    "attention": (lambda q, k, v, valid: F.attention(q, k, v, mask=masks.causal() & masks.padding(valid), bias=F.alibi(N)), *HEADS, VALID),
    "attention_entropy": (F.attention_entropy, *PAIRS),
    "attention_head": (F.attention_head, *(x[0, :, 0] for x in HEADS)),
    "attention_statistics": (F.attention_statistics, *PAIRS),
    "attention_weights": (F.attention_weights, *PAIRS),
    "average_pool": (lambda x: F.average_pool(x, 2), X),
    "convolution": (lambda x, kernel, valid: F.convolution(x, kernel, valid=valid), X, normal(3, D, D), VALID),
    "cross_entropy": (lambda x, y, valid: F.cross_entropy(x, y, where=valid, smoothing=0.1, z_loss=0.1), LOGITS, LABELS, VALID),
    "dot_similarity": (F.dot_similarity, X[0], X[1]),
    "doubly_stochastic_penalty": (F.doubly_stochastic_penalty, WEIGHTS),
    "dropout": (lambda x: F.dropout(x, rate=0.5, key=KEY), X),
    "duplicate_rows": (F.duplicate_rows, X),
    "elu_plus_one": (F.elu_plus_one, X),
    "feed_forward": (F.feed_forward, X, SQUARE, SCALE, SQUARE, SCALE),
    "gated_feed_forward": (F.gated_feed_forward, X, SQUARE, SQUARE, SQUARE),
    "gelu": (F.gelu, X),
    "gelu_tanh": (F.gelu_tanh, X),
    "general_attention": (lambda q, k, v: F.general_attention(q, k, v, F.dot_similarity), X, X, X),
    "gru_cell": (lambda x, y, state: F.gru_cell(x, y, state), normal(B, 3, H), normal(B, 3, H), F.recurrent_start(F.gru_cell, (B, H))),
    "layer_norm": (F.layer_norm, X, SCALE, SCALE),
    "learned": (F.learned, normal(B * T, D), POSITIONS),
    "linear": (F.linear, X, SQUARE, SCALE),
    "linear_attention": (lambda q, k, v: F.linear_attention(q, k, v, causal=True, chunk=2), *HEADS),
    "linear_attention_step": (F.linear_attention_step, *(x[:, 0] for x in HEADS), F.linear_attention_start(B, N, H, H)),
    "linear_loss": (lambda x, table, y: F.linear_loss(x, table, y, chunk=2), X, normal(V, D), LABELS),
    "load_balancing_loss": (lambda x: F.load_balancing_loss(F.route(x, 2)), X),
    "lstm_cell": (F.lstm_cell, normal(B, 4, H), normal(B, 4, H), STATE),
    "mask_tokens": (lambda x: F.mask_tokens(x, KEY, mask=0, vocab_size=V), LABELS),
    "masked_softmax": (F.masked_softmax, X, jnp.broadcast_to(VALID[..., None], X.shape)),
    "max_pool": (lambda x: F.max_pool(x, 2), X),
    "mixture_of_experts": (experts, X[0], normal(D, D, 3), normal(D, 3, D)),
    "multiplicative_attention": (lambda q, w: F.multiplicative_attention(q, q, q, w=w), X, SQUARE),
    "normalized_positions": (lambda p: F.normalized_positions(p, length=9), POSITIONS),
    "per_example_gradients": (lambda p, x: F.per_example_gradients(loss, p, {"x": x, "valid": VALID}), SQUARE, X),
    "per_example_losses": (lambda p, x: F.per_example_losses(loss, p, {"x": x, "valid": VALID}), SQUARE, X),
    "pick_position": (F.pick_position, WEIGHTS),
    "post_norm": (lambda x: F.post_norm(x, NORM, NORM), X),
    "pre_norm": (lambda x: F.pre_norm(x, NORM, NORM), X),
    "qk_norm": (lambda q, k, scale: F.qk_norm(q, k, scale=scale), *PAIRS, SCALE),
    "r_drop": (lambda a, b, y: F.r_drop(a, b, y, weight=2.0), LOGITS, LOGITS[::-1], LABELS),
    "raw_positions": (F.raw_positions, POSITIONS),
    "recurrent": (lambda x, weights, valid: F.recurrent(F.lstm_cell, x, weights, valid=valid), X, CELL, VALID),
    "recurrent_step": (lambda x, state, weights: F.recurrent_step(F.lstm_cell, x, state, weights), X[:, 0], STATE, CELL),
    "reinforce": (lambda p, r: F.reinforce(p, r, baseline=r.mean()), WEIGHTS[0], WEIGHTS[1]),
    "relu": (F.relu, X),
    "residual": (lambda x: F.residual(x, NORM), X),
    "resize_grid_positions": (lambda table: F.resize_grid_positions(table, (2, 2), (3, 3)), SQUARE),
    "resize_positions": (lambda table: F.resize_positions(table, 6, method="interpolate"), SQUARE),
    "rms_norm": (F.rms_norm, X, SCALE),
    "rnn_cell": (F.rnn_cell, normal(B, 1, H), normal(B, 1, H), F.recurrent_start(F.rnn_cell, (B, H))),
    "rotary": (F.rotary, HEADS[0], POSITIONS),
    "route": (lambda x: F.route(x, 2), X),
    "router_z_loss": (F.router_z_loss, LOGITS),
    "sandwich_norm": (lambda x: F.sandwich_norm(x, NORM, (NORM, NORM)), X),
    "silu": (F.silu, X),
    "sinusoidal": (lambda p: F.sinusoidal(p, dim=D), POSITIONS),
    "symmetric_divergence": (F.symmetric_divergence, LOGITS, LOGITS[::-1]),
    "t5_bucket": (lambda ahead: F.t5_bucket(ahead, num_buckets=8, max_distance=16, bidirectional=True), POSITIONS - 3),
    "top_alignments": (lambda q, k: F.top_alignments(q, k, 2), *PAIRS),
    "unzigzag": (lambda x: F.unzigzag(x, 2), X),
    "weights_entropy": (F.weights_entropy, WEIGHTS),
    "weights_of": (lambda q, k: F.weights_of(F.attention, q, k), *PAIRS),
    "zigzag": (lambda x: F.zigzag(x, 2), X),
}


FUNCTIONS, ARGUMENTS = ({name: part(case) for name, case in CASES.items()} for part in (lambda x: x[0], lambda x: x[1:]))


@functools.cache
def results():
    return {name: function(*ARGUMENTS[name]) for name, function in FUNCTIONS.items()}


def test_every_function_of_arrays_is_here():
    functions = {name for name in dir(F) if inspect.isfunction(getattr(F, name))}
    assert functions - set(CASES) == OF_NUMBERS


class TestVariants(chex.TestCase):
    @chex.variants(with_jit=True, with_pmap=True)
    def test_the_results_are_the_plain_ones(self):
        together = self.variant(lambda given: {name: f(*given[name]) for name, f in FUNCTIONS.items()}, n_devices=2)
        chex.assert_trees_all_close(together(ARGUMENTS), results(), rtol=1e-6, atol=1e-6)
