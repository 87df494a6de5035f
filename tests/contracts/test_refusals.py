"""What `functional` and `masks` refuse, and their words: what was expected, and what was given."""

import functools
import inspect
import itertools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer import functional, masks
from jaxformer.functional.attention.weights import indices
from jaxformer.functional.positions import vectors
from tests.contracts.attention import VALID, B, H, S, T, arrays

QUERY, KEY, VALUE, _ = arrays()
ZEROS = lambda *shape: jnp.zeros(shape)
TABLE = ZEROS(5, 3)


class Unchecked:
    """The functions without the type checks of the tests, as for a user."""

    def __getattr__(self, name):
        return inspect.unwrap(getattr(functional, name))


F = Unchecked()


def convolve(*shape, dims=1, **options):
    return F.convolution(ZEROS(1, *[3] * dims, 2), ZEROS(*shape), **options)


KERNEL = "kernel size and dilation must be at least 1, got "
LAYERS = [
    (lambda: convolve(0, 2, 2), KERNEL + "0 and 1"),
    (lambda: convolve(2, 2, 2, dilation=0), KERNEL + "2 and 0"),
    (lambda: F.receptive_field(3, [1, 0]), KERNEL + "3 and 0"),
    (lambda: convolve(2, 3, 2), "kernel must have shape [K, 2, E] for x [1, 3, 2], got [2, 3, 2]"),
    (lambda: convolve(2, 2, 2, 2), "kernel must have shape [K, 2, E] for x [1, 3, 2], got [2, 2, 2, 2]"),
    (lambda: convolve(2, 2, 2, stride=0), "stride must be at least 1, got 0"),
    (lambda: convolve(2, 2, 2, padding="valid", causal=True), "padding='valid' excludes causal and valid"),
    (lambda: convolve(2, 2, 2, padding="valid", valid=ZEROS(1, 3) > 0), "padding='valid' excludes causal and valid"),
    (lambda: convolve(2, 2, 2, bias=ZEROS(3)), "bias must have shape [2], got [3]"),
    (lambda: convolve(2, 2, 2, valid=ZEROS(1, 4) > 0), "valid must have shape [1, 3], got [1, 4]"),
    (lambda: convolve(2, 2, 2, 2, dims=2, causal=True), "causal is only for sequences"),
    (lambda: convolve(2, 2, 2, padding="VALID"), "padding must be same or valid, got 'VALID'"),
    *(
        (lambda pool=pool, sizes=sizes: getattr(F, pool)(ZEROS(1, 3, 5, 2), sizes[0], stride=sizes[1]), message)
        for pool in ("max_pool", "average_pool")
        for sizes, message in (
            ((0, None), "a window of 1 to 3 positions must move by 1 or more, got 0 by 0"),
            ((4, None), "got 4 by 4"),
            ((2, 0), "got 2 by 0"),
        )
    ),
    (
        lambda: F.layer_norm(ZEROS(1, 4), ZEROS(4), form="median"),
        "form must be 'variance' or 'deviation', got 'median'",
    ),
    (lambda: F.layer_norm(ZEROS(3, 8), ZEROS(2, 4)), "scale must have shape [D] = [8], got [2, 4]"),
    (lambda: F.rms_norm(ZEROS(3, 8), ZEROS(2, 4)), "scale must have shape [D] = [8], got [2, 4]"),
    (lambda: F.deep_norm_gains(0, 0), "not both 0, got 0 and 0"),
    (lambda: F.dropout(ZEROS(3), rate=-0.1, key=jax.random.key(0)), "dropout rate must be in [0, 1), got -0.1"),
    (lambda: F.dropout(ZEROS(3), rate=1.0, key=jax.random.key(0)), "dropout rate must be in [0, 1), got 1.0"),
    # The words of several keys would be mixed into one, and every row would have the same bits.
    (lambda: F.dropout(ZEROS(3), rate=0.5, key=jax.random.split(jax.random.key(0), 3)), "one key, got key<fry> [3]"),
    (lambda: F.dropout(ZEROS(3), rate=0.5, key=jnp.zeros((3, 2), jnp.uint32)), "one key, got uint32 [3, 2]"),
    (lambda: F.route(ZEROS(2, 5), 0), "between 1 and 5 experts, got 0"),
    (lambda: F.route(ZEROS(2, 5), 6), "between 1 and 5 experts, got 6"),
    (lambda: F.router_z_loss(ZEROS(3, 4, 5), ZEROS(3, 1) > 0), "valid must be Bool [3, 4], got bool [3, 1]"),
    (
        lambda: F.load_balancing_loss(F.route(ZEROS(3, 4, 5), 2), ZEROS(3, 1) > 0),
        "valid must be Bool [3, 4], got bool [3, 1]",
    ),
    (
        lambda: F.mask_tokens(jnp.ones((1, 3), int), jax.random.key(0), mask=9, vocab_size=9, rate=1.5),
        "rate must be in [0, 1], got 1.5",
    ),
    (
        lambda: F.mask_tokens(jnp.ones((1, 3), int), jax.random.key(0), mask=9, vocab_size=2, special=(0, 1, 9)),
        "got 2 ids, all special",
    ),
]

CELLS = {"rnn_cell": 1, "gru_cell": 3, "lstm_cell": 4}


def weights(gates, dim=4, hidden=6):
    return functional.RecurrentWeights(
        *map(jnp.zeros, [(dim, gates, hidden), (hidden, gates, hidden)] + [(gates, hidden)] * 2)
    )


def run(cell="gru_cell", given=None, x=(3, 5, 4), **options):
    return F.recurrent(getattr(F, cell), ZEROS(*x), given or weights(CELLS[cell]), **options)


RECURRENT = [
    (lambda: run(x=(3, 5, 3)), "weights.input must have shape [3, 3, 6], got [4, 3, 6]"),
    (
        lambda: run(given=weights(3)._replace(hidden=ZEROS(6, 4, 6))),
        "weights.hidden must have shape [6, 3, 6], got [6, 4, 6]",
    ),
    (lambda: run(x=(5, 4)), "x must be [B, T, D] and weights.input [D, G, H], got [5, 4] and "),
    (lambda: run(state=F.recurrent_start(F.gru_cell, (1, 6))), "state.hidden must have shape [3, 6], got [1, 6]"),
    (lambda: run(valid=ZEROS(3, 1) > 0), "valid must have shape [3, 5], got [3, 1]"),
    # JAX clamps the index of a gate that is missing, and gates that are left over would have no effect.
    *(
        (
            lambda cell=cell, other=other: run(cell, weights(CELLS[other])),
            f"{cell} needs weights of G = {CELLS[cell]} gates, got {CELLS[other]} for inputs",
        )
        for cell, other in itertools.permutations(CELLS, 2)
    ),
    (
        lambda: F.recurrent_step(F.gru_cell, ZEROS(3, 4), F.recurrent_start(F.gru_cell, (3, 6)), weights(4)),
        "gru_cell needs weights of G = 3 gates, got 4 for inputs",
    ),
]

ROWS = "position {} has no learned vector: the table covers {} to 3"
POSITIONS = [
    (lambda: F.sinusoidal(jnp.arange(3), dim=7), "dim must be even to pair sines with cosines, got 7"),
    # Positions without a row had another one: the last, or one that counts from the end.
    (lambda: F.learned(ZEROS(4, 3), jnp.array([0, -1])), ROWS.format(-1, 0)),
    (lambda: F.learned(ZEROS(4, 3), jnp.array([0, 4])), ROWS.format(4, 0)),
    (lambda: vectors.check_given_positions(np.array([[0, -3]]), 2, 4), ROWS.format(-3, -2)),
    (lambda: vectors.check_given_positions(jnp.array([[0, 4]]), 2, 4), ROWS.format(4, -2)),
    (lambda: vectors.check_positions(5, 4), "length 5 has no learned position beyond 4"),
    (lambda: F.normalized_positions(jnp.zeros((2, 1), int), length=0), "length must be at least 1, got 0"),
    (
        lambda: F.normalized_positions(jnp.zeros((2, 1), int), length=np.array([[3], [-1]])),
        "length must be at least 1, got -1",
    ),
    (lambda: F.resize_positions(TABLE, 6, method="truncate"), "cannot truncate a table of 5 positions to 6"),
    (lambda: F.resize_positions(TABLE, 4, method="extend"), "cannot extend a table of 5 positions to 4"),
    (lambda: F.resize_positions(TABLE, 0, method="interpolate"), "cannot interpolate a table of 5 positions to 0"),
    *(
        (lambda grid=grid, options=options: F.resize_grid_positions(TABLE, grid, (2, 2), **options), message)
        for grid, options, message in (
            ((2, 2), {}, "2 x 2 patches and 0 class rows must have 4 rows, got 5"),
            ((5, 1), {"num_class_rows": 1}, "5 x 1 patches and 1 class rows must have 6 rows, got 5"),
            ((6, 1), {"num_class_rows": -1}, "num_class_rows must be at least 0, got -1"),
            ((5, 0), {}, "at least 1 x 1 patches, got (5, 0)"),
            ((5, 1), {"method": "nearest"}, "method must be bilinear or bicubic, got 'nearest'"),
        )
    ),
    (lambda: F.rotary(ZEROS(1, 2, 1, 3)), "head dim must be even to rotate pairs of features, got 3"),
    (lambda: F.rotary(ZEROS(1, 2, 1, 4), jnp.arange(1)), "[T] or [B, T] of x [1, 2, 1, 4], got shape [1]"),
    (lambda: F.rotary(*[ZEROS(1, 2, 1, 4)] * 2), "of x [1, 2, 1, 4], got shape [1, 2, 1, 4]"),  # a query and a key
    (lambda: F.rotary(ZEROS(1, 2, 1, 4), pairs="thirds"), "'halves' or 'neighbors', got 'thirds'"),
    (lambda: F.relative_keys(ZEROS(4, 8)), "must be odd (2 k + 1), got 4"),
    (
        lambda: F.t5_bias(ZEROS(2, 4)),
        "at least 4 buckets and a max_distance above 0, got 2 buckets and max_distance 128",
    ),
    (lambda: F.t5_bias(ZEROS(32, 4), max_distance=8), "a max_distance above 8, got 32 buckets and max_distance 8"),
]

LOGITS, LABELS, STATES = ZEROS(2, 5, 7), jnp.ones((2, 5), int), (ZEROS(2, 5, 3), ZEROS(7, 3))
R_DROP = functional.RDrop(1.0)
SHAPES = "shapes must be logits [*batch, V], labels [*batch], got "
LINEAR = "shapes must be x [B, T, D], table [V, D], labels [B, T], with B a multiple of "
OUTSIDE = "labels must be in [0, V = 7) where they count, got "


class Empty(functional.LogitLoss):
    pass


LOSSES = [
    (lambda: F.cross_entropy(LOGITS, LABELS, smoothing=-0.1), "smoothing must be in [0, 1), got -0.1"),
    (lambda: functional.CrossEntropy(1.0), "smoothing must be in [0, 1), got 1.0"),
    (lambda: functional.RDrop(1.0, 1.0), "smoothing must be in [0, 1), got 1.0"),
    (lambda: functional.SimCut(cut=1.0), "cut must be in [0, 1), got 1.0"),
    (lambda: F.token_cutoff(functional.Tokens(LABELS), rate=-0.1, key=None), "rate must be in [0, 1), got -0.1"),
    # Labels [B, 1] would be compared with all rows, and a choice [B, 1] counted once for many labels.
    *((lambda x=x: F.cross_entropy(LOGITS, x), SHAPES) for x in (LABELS[..., None], LABELS[:1], LABELS[0])),
    *(
        (lambda call=call, x=x: call(where=x), f"where must be Bool [2, 5], got {x.dtype} ")
        for x in (ZEROS(2, 1) > 0, ZEROS(2, 5), LABELS)
        for call in (
            functools.partial(F.cross_entropy, LOGITS, LABELS),
            functools.partial(F.linear_loss, *STATES, LABELS),
            functools.partial(F.linear_loss, *STATES, LABELS, R_DROP),
            functools.partial(F.symmetric_divergence, LOGITS, LOGITS),
            functools.partial(F.divergence, LOGITS, LOGITS),
        )
    ),
    (lambda: F.symmetric_divergence(LOGITS, LOGITS[:1]), "one shape, got [2, 5, 7] and [1, 5, 7]"),
    *(
        (lambda x=x: F.linear_loss(ZEROS(*x), ZEROS(7, 3), LABELS), LINEAR + "1")
        for x in ((2, 5, 4), (2, 4, 3), (3, 5, 3))
    ),
    (lambda: F.linear_loss(ZEROS(3, 5, 3), ZEROS(7, 3), jnp.ones((3, 5), int), R_DROP), LINEAR + "2, got "),
    *(
        (
            lambda label=label, call=call: call(LABELS.at[0, 1].set(label)),
            f"{OUTSIDE}{label}; exclude labels with where=",
        )
        for label in (-100, 7)
        for call in (
            functools.partial(F.cross_entropy, LOGITS),
            functools.partial(F.linear_loss, *STATES),
            functools.partial(F.linear_loss, *STATES, loss=R_DROP),
        )
    ),
    (lambda: F.linear_loss(*STATES, LABELS, Empty()), "Empty does not define value"),
]

HEAD = QUERY[0, :, 0], KEY[0, :, 0], VALUE[0, :, 0]
NOT_BOOLEAN = "mask must be Boolean [T, S], True = attend, got "
NO_RATE = "functional.Dropout(rate, key), got "
ADDITIVE = np.where(np.tri(T, S, dtype=bool), 0.0, -np.inf).astype(np.float32)
attend = functools.partial(F.attention, QUERY, KEY, VALUE)
look = functools.partial(F.attention_head, *HEAD)
similar = functools.partial(F.general_attention, *(x[:, :, 0] for x in (QUERY, KEY, VALUE)), functional.dot_similarity)


def linear(query=(2, 5, 3, 4), key=(2, 5, 3, 4), value=(2, 5, 3, 4), **options):
    return F.linear_attention(ZEROS(*query), ZEROS(*key), ZEROS(*value), **options)


def misfit(**shapes):
    ones = {name: jnp.ones(shape, bool if name == "mask" else jnp.float32) for name, shape in shapes.items()}
    return F.attention(**{"query": QUERY, "key": KEY, "value": VALUE} | ones)


AGREE = "query, key and value must agree in batch, key and value in length"
ATTENTION = [
    (lambda: attend(implementation="fast"), "implementation must be one of ['blockwise', 'cudnn', "),
    (lambda: misfit(query=(T, 4, H)), "query must be [batch, length, heads, dim], got shape [5, 4, 4]"),
    (lambda: misfit(key=(B, S, 2, H + 1)), "head dims must be equal, got 4 and 5"),
    (lambda: misfit(key=(B + 1, S, 2, H)), "batch sizes must be equal, got query 2, key 3 and value 2"),
    (lambda: misfit(value=(B, S + 1, 2, 3)), "(7, 2) and (8, 2)"),
    (lambda: misfit(value=(B, S, 4, 3)), "(7, 2) and (7, 4)"),
    (lambda: misfit(key=(B, S, 3, H), value=(B, S, 3, 3)), "multiple of key heads, got 4 and 3"),
    (lambda: misfit(mask=(T, S + 1)), "[5, 8], but queries and keys have [5, 7]"),
    (lambda: misfit(mask=(3, T, S)), "mask must broadcast to [B, N, T, S] = [2, 4, 5, 7], got shape [3, 1, 5, 7]"),
    (lambda: misfit(bias=(1, 3, T, S)), "bias must broadcast to [B, N, T, S] = [2, 4, 5, 7], got shape [1, 3, 5, 7]"),
    (lambda: attend(dropout=functional.Dropout(-0.1, jax.random.key(0))), "dropout rate must be in [0, 1), got -0.1"),
    (lambda: attend(dropout=functional.Dropout(1.0, jax.random.key(0))), "dropout rate must be in [0, 1), got 1.0"),
    # Integers gave integers: zeros, where the weights are below 1.
    (lambda: F.attention(QUERY.astype(int), KEY, VALUE), "query must be floating-point, got int"),
    (lambda: F.attention(QUERY, KEY.astype(int), VALUE), "key must be floating-point, got int"),
    (lambda: F.attention(QUERY, KEY, VALUE.astype(int)), "value must be floating-point, got int"),
    *(
        (lambda x=x, i=i: F.attention(*map(jnp.zeros, x), implementation=i), f"must be at least 1, got {name} 0")
        for i in (None, "blockwise")
        for name, x in {
            "query heads": [(2, 5, 0, 4), (2, 7, 1, 4), (2, 7, 1, 4)],
            "key heads": [(2, 5, 2, 4), (2, 7, 0, 4), (2, 7, 0, 4)],
            "head dim": [(2, 5, 2, 0), (2, 7, 2, 0), (2, 7, 2, 4)],
            "value dim": [(2, 5, 2, 4), (2, 7, 2, 4), (2, 7, 2, 0)],
        }.items()
    ),
    *(
        (lambda bias=bias: attend(bias=bias()), "bias must broadcast to [B, N, T, S]")
        for bias in (
            lambda: ZEROS(3, T, S),
            lambda: functional.alibi(4) + ZEROS(3, T, S),
            lambda: ZEROS(1, 1, T, S + 1) + functional.alibi(4),
        )
    ),
    (lambda: attend(bias=ZEROS(T, S) > 0), f"got bool [{T}, {S}]; a Boolean array is a mask"),
    (lambda: attend(scale=jnp.ones(1)), "scale must be one number, got shape [1]"),
    (lambda: attend(dropout=0.1), NO_RATE + "0.1"),
    (lambda: attend(dropout=functional.Dropout(0.1, None)), NO_RATE + "Dropout(rate=0.1, key=None)"),
    (lambda: attend(dropout=functional.Dropout(jax.random.key(0), 0.1)), NO_RATE + "Dropout(rate=key"),
    *(
        (lambda name=name: getattr(F, name)(QUERY, KEY, *[1][: name == "top_alignments"], sinks=ZEROS(3)), "[N] = [4]")
        for name in ("attention_entropy", "attention_statistics", "top_alignments")
    ),
    (lambda: F.top_alignments(QUERY, KEY, 0), f"count must be between 1 and {S} keys, got 0"),
    (lambda: F.top_alignments(QUERY, KEY, 8), f"count must be between 1 and {S} keys, got 8"),
    (lambda: F.attention_weights(QUERY, KEY, rows=[T]), f"rows must be indices from 0 to {T - 1}"),
    (lambda: F.attention_weights(QUERY, KEY, rows=[-1]), f"rows must be indices from 0 to {T - 1}"),
    (lambda: F.attention_weights(QUERY, KEY, heads=[0, 4]), "heads must be indices from 0 to 3"),
    (lambda: F.weights_of(lambda q, k, v: q, QUERY, KEY, heads=[4]), "heads must be indices from 0 to 3"),
    (lambda: F.weights_of(lambda q, k, v: q, QUERY, KEY, rows=[5]), "rows must be indices from 0 to 4"),
    # Row 0.5 would be row 0, and a mask the rows 0 and 1.
    *(
        (lambda x=x: inspect.unwrap(indices)("rows", x, 5), f"rows must be integers, got {x}")
        for x in ([0.5], [1.0, 2.0], [True, False])
    ),
    (lambda: look(bias=functional.alibi(4)), "one head of one example, got a bias of 1 examples and 4 heads"),
    (lambda: look(masks.padding(VALID)), "one head of one example, got a mask of 2 examples and 1 heads"),
    (lambda: F.attention_head(HEAD[0], KEY, HEAD[2]), "key must be [length, dim] of one head of one example, got"),
    # An additive mask of 0 and minus infinity showed each query the keys that it hides.
    (lambda: look(jnp.asarray(ADDITIVE)), f"{NOT_BOOLEAN}float32 [{T}, {S}]; use masks.from_binary for numbers"),
    (lambda: look(jnp.ones((T, S))), "and bias= to add 0 and -inf"),
    (lambda: look(jnp.ones(S, bool)), f"{NOT_BOOLEAN}bool [{S}]"),
    (lambda: look(jnp.ones((1, 1, T, S), bool)), f"{NOT_BOOLEAN}bool [1, 1, {T}, {S}]"),
    (lambda: F.soft_cap(0.0), "cap must be above 0 and finite, got 0.0"),
    (lambda: F.soft_cap(-1.0), "cap must be above 0 and finite, got -1.0"),
    (lambda: F.soft_cap(float("nan")), "cap must be above 0 and finite, got nan"),
    (lambda: F.zigzag(ZEROS(2, 12), 4), "zigzag over 4 shards: the length must be a multiple of 8, got 12"),
    (lambda: F.unzigzag(ZEROS(2, 12), 4), "zigzag over 4 shards: the length must be a multiple of 8, got 12"),
    (
        lambda: F.general_attention(ZEROS(2, 3, 4), ZEROS(2, 5, 6), ZEROS(2, 4, 2), jnp.dot),
        "got [2, 3, 4], [2, 5, 6], [2, 4, 2]",
    ),
    (lambda: similar(mask=masks.dense(np.ones((2, 2, T, S), bool))), "mask must broadcast to [2, 1, T, S]"),
    (lambda: linear(key=(2, 4, 3, 4), value=(2, 4, 3, 4), causal=True), "must have T = S, got 5 and 4"),
    (lambda: linear(key=(2, 5, 1, 4)), "head counts must be equal, got 3 and 1"),
    (lambda: linear(key=(1, 5, 3, 4), value=(1, 5, 3, 4)), AGREE),
    (lambda: linear(value=(2, 1, 3, 4)), AGREE),
    (lambda: linear(value=(2, 5, 1, 4)), AGREE),
    (lambda: linear(valid=ZEROS(2, 1) > 0), "valid must have shape [B, S] = [2, 5], got [2, 1]"),
    (lambda: linear(causal=True, chunk=0), "chunk must be at least 1, got 0"),
]


class Unregistered(masks.Mask):
    pass


FLAGS = lambda *shape: np.ones(shape, bool)
BINARY = "1 (attend) and 0 (masked) only, got "
LENGTH = "int [B], or one for all, int [], got "
PYTREE = "a mask must be a pytree: decorate Unregistered with jax.tree_util"
MASKS = [
    (lambda: masks.window(-1), "before and after must be at least 0, got before=-1, after=0"),
    (lambda: masks.window(0, -2), "got before=0, after=-2"),
    *(
        (lambda wide=wide: jax.jit(lambda n: wide(n).dense(3, 3))(2), "before and after must be known at trace time")
        for wide in (masks.window, lambda after: masks.window(1, after))
    ),
    (lambda: masks.lengths([[3]]), LENGTH + "int32 [1, 1]"),
    (lambda: masks.lengths([2.5]), LENGTH + "float32 [1]"),
    (lambda: masks.prefix(2.0), LENGTH + "float32 []"),
    (lambda: masks.prefix(True), LENGTH + "bool []"),
    (lambda: masks.padding(ZEROS(2, 3)), "valid must be Bool [B, S] or [S], True = real token, got float32 [2, 3]"),
    (lambda: masks.padding(FLAGS(1, 2, 3)), "got bool [1, 2, 3]"),
    (lambda: masks.padding(jnp.array([3, 4])), "got int32 [2]; masks.lengths takes the number of tokens"),
    (lambda: masks.padding(jnp.array([[1, 0]])), "got int32 [1, 2]; pass valid == 1 for numbers 0 and 1"),
    (lambda: masks.segments(FLAGS(2, 3), FLAGS(1, 3)), "got [2, 3] and [1, 3]"),
    (lambda: masks.causal(jnp.arange(4)), "offset must be one integer for all examples, int [], got int32 [4]"),
    (lambda: masks.causal(jnp.float32(1)), "got float32 []"),
    (lambda: masks.dense(ZEROS(3, 3)), "mask must be Boolean of rank 2, 3 or 4, got float32 [3, 3]"),
    (lambda: masks.dense(FLAGS(3)), "rank 2, 3 or 4, got bool [3]"),
    (
        lambda: masks.block_sparse(np.ones((2, 2)), 4),
        "layout must be Bool of rank 2 and size at least 1, got float64 [2, 2] and 4",
    ),
    (lambda: masks.block_sparse(FLAGS(2, 2), 0), "got bool [2, 2] and 0"),
    (lambda: masks.from_torch(ZEROS(3, 3)), "mask must be Boolean, got float32; use dense(array == 0)"),
    (lambda: masks.from_torch(FLAGS(6, 2, 3), num_heads=4), "of 4 heads must have [B * 4, T, S], got [6, 2, 3]"),
    *(
        (lambda x=x: masks.from_binary(x), BINARY + got)
        for x, got in [([[0.0, -np.inf]], "-inf"), ([[1, 0.5]], "0.5"), ([[2, 1]], "2"), ([[np.nan, 1]], "nan")]
    ),
    (lambda: masks.from_binary([[-1e9, 0]]), "for an additive mask of 0 (attend) and minus infinity, use dense(array"),
    # Functions that were not called, and None, ended in errors about arrays of objects.
    (lambda: masks.as_mask(masks.causal), "such as masks.causal(), or a Boolean array, got causal"),
    (lambda: masks.as_mask("causal"), "got causal"),
    (lambda: masks.causal() & None, "got None"),
    (lambda: masks.as_mask(Unregistered()), PYTREE),
    (lambda: masks.causal() & Unregistered(), PYTREE),
    (lambda: masks.Mask().dense(2, 2), "Mask does not define tile"),
    # `causal() and padding(valid)` was the second alone: the model saw the future.
    (lambda: masks.causal() and masks.window(1), "combine masks with &, | and ~"),
    (lambda: not masks.causal(), "a mask has no truth value"),
    # A gather clamps, so without the check a mask of the wrong length would repeat its last key.
    *(
        (lambda mask=mask, wrap=wrap: wrap(mask).dense(3, 5), message)
        for wrap in (lambda m: m, lambda m: m & masks.causal(), lambda m: masks.causal() | ~m, masks.stored)
        for mask, message in (
            (masks.padding(FLAGS(1, 4)), "padding covers S = 4, but queries and keys have 5"),
            (masks.segments(np.ones((1, 3), int)), "segments cover S = 3, but queries and keys have 5"),
            (masks.segments(np.ones((1, 4), int), np.ones((1, 5), int)), "segments cover T = 4, but "),
            (masks.block_sparse(FLAGS(2, 2), 2), "layout must have 3 blocks of 2 for S = 5, got 2"),
            (masks.dense(FLAGS(3, 4)), "mask covers [T, S] = [3, 4], but queries and keys have [3, 5]"),
            (masks.dense(FLAGS(2, 5)), "queries and keys have [3, 5]; masks.padding takes the real keys of"),
        )
    ),
]


@pytest.mark.parametrize(
    ("call", "message"),
    [*LAYERS, *RECURRENT, *POSITIONS, *LOSSES, *ATTENTION, *MASKS],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_refused(call, message):
    with pytest.raises((ValueError, TypeError, NotImplementedError), match=re.escape(message)):
        call()
