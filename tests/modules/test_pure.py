"""A module class and its configuration as functions over a plain dict."""

import functools
import gc

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from jaxformer import functional, models, modules, pure, sharding
from jaxformer.modules.pure import check_shapes
from tests.modules.small import drawn, int32, quick

CONFIG = models.EncoderDecoderConfig(
    11,
    11,
    d_model=8,
    num_heads=2,
    d_ff=16,
    num_encoder_layers=2,
    num_decoder_layers=1,
    attention_bias=True,
    norm_position="pre",
)
NET = pure(models.EncoderDecoder, CONFIG)
INIT, APPLY = quick(NET.init), quick(NET.apply)
TOKENS = int32(np.ones((1, 3)))


@functools.cache
def params():
    return INIT(jax.random.key(0))


def test_equal_models_are_equal_keys():
    """So a model can be a static argument, and two equal ones share a compiled program."""
    again = pure(models.EncoderDecoder, models.EncoderDecoderConfig(**vars(CONFIG)))
    assert again == NET
    assert hash(again) == hash(NET)
    run = jax.jit(chex.assert_max_traces(lambda net, x: x, n=1), static_argnums=0)
    run(NET, jnp.ones(1))
    run(again, jnp.ones(1))


def double(query, key, value, **options):
    return 2 * functional.attention(query, key, value, **options)


def test_parts_reach_the_model():
    """They are keyword arguments of its constructor; nothing else about the model changes, and adapters keep them."""
    net = pure(models.EncoderDecoder, CONFIG, attention=double)
    adapted = modules.lora(net, rank=1, targets=["*/attention/kernel"])
    assert net.shapes == NET.shapes
    adapters = quick(lambda key: adapted.init(key)["lora"])(jax.random.key(0))
    plain, doubled = (apply(params(), TOKENS, TOKENS) for apply in (APPLY, quick(net.apply)))
    same = quick(adapted.apply)(params() | {"lora": adapters}, TOKENS, TOKENS)
    assert not np.allclose(plain, doubled, atol=1e-3)
    np.testing.assert_allclose(doubled, same, atol=1e-6)  # a fresh adapter changes nothing


def test_equal_parts_make_equal_models():
    network = lambda config, *, first=0, second=0, rngs: models.EncoderDecoder(config, rngs=rngs)
    net, again = pure(network, CONFIG, first=1, second=2), pure(network, CONFIG, second=2, first=1)
    assert (net, hash(net)) == (again, hash(again))
    assert len({net, pure(network, CONFIG, first=2, second=1), pure(network, CONFIG, first=1)}) == 3
    assert pure(models.EncoderDecoder, CONFIG, attention=double) != NET


REFUSALS = {
    "part": (
        models.EncoderDecoder,
        CONFIG,
        {"atention": double},
        "must be hashable arguments of it: got an unexpected keyword argument 'atention'",
    ),
    "rngs": (models.EncoderDecoder, CONFIG, {"rngs": 0}, "multiple values for keyword argument 'rngs'"),
    "config": (models.EncoderDecoder, CONFIG, {"config": 0}, "multiple values for argument 'config'"),
    "no part": (models.Seq2Seq, CONFIG, {"attention": double}, "the parts of Seq2Seq .* keyword argument 'attention'"),
    "function": (models.make_encoder, CONFIG, {"attend": double}, "the parts of make_encoder .* argument 'attend'"),
    "list": (
        models.EncoderDecoder,
        CONFIG,
        {"attention": [double]},
        "EncoderDecoder must be .*: unhashable type: 'list'",
    ),
    # It was taken for a function that makes modules, and called with a configuration at the first use.
    "module": (
        nnx.Linear(2, 2, rngs=nnx.Rngs(0)),
        CONFIG,
        {},
        "takes the class Linear and a configuration, not a Linear that has",
    ),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_refusals(name):
    model, config, parts, message = REFUSALS[name]
    with pytest.raises(TypeError, match=message):
        pure(model, config, **parts)


@pytest.mark.full
def test_describing_a_model_allocates_nothing():
    """Shapes and axes of a model too big for the machine (the widths of GPT-3) are there at once."""
    config = models.EncoderDecoderConfig(
        50_000, 50_000, d_model=12288, num_heads=96, d_ff=49152, num_encoder_layers=96, num_decoder_layers=96
    )
    gc.collect()
    before = {id(x) for x in jax.live_arrays()}
    net = pure(models.EncoderDecoder, config)
    shapes, axes = net.shapes, net.axes
    assert sum(x.size for x in jax.tree.leaves(shapes)) > 3e11
    assert axes["encoder"]["stack"]["layers"]["attention"]["kernel"][0] == "layers"
    assert sum(x.nbytes for x in jax.live_arrays() if id(x) not in before) < 1e4


def test_shapes_are_those_of_init():
    """They are a plain dict of float32."""
    assert type(params()) is dict
    assert all(isinstance(x, jax.Array) and x.dtype == jnp.float32 for x in jax.tree.leaves(params()))
    describe = lambda x: (x.shape, x.dtype)
    assert jax.tree.map(describe, params()) == jax.tree.map(describe, NET.shapes)


def test_every_dimension_has_a_name():
    """The axes tree matches the shapes tree rank by rank; layers come first where they are stacked."""
    is_names = lambda x: isinstance(x, tuple)
    axes = jax.tree_util.tree_leaves_with_path(NET.axes, is_leaf=is_names)
    shapes = jax.tree_util.tree_leaves_with_path(NET.shapes)
    assert [path for path, _ in axes] == [path for path, _ in shapes]
    known = {"layers", "model", "heads", "kv", "head_dim", "hidden", "vocab", "position"}
    for (path, names), (_, shape) in zip(axes, shapes, strict=True):
        assert len(names) == len(shape.shape), path
        assert set(names) <= known, path
        assert (names[0] == "layers") == ("layers" in jax.tree_util.keystr(path)), path
    sizes = {"layers": {1, 2}, "model": {8}, "heads": {2}, "kv": {2, 3}, "head_dim": {4}, "hidden": {16}, "vocab": {11}}
    for (path, names), (_, shape) in zip(axes, shapes, strict=True):
        for name, size in zip(names, shape.shape, strict=True):
            assert size in sizes[name], (path, name)


class Head(nnx.Module):
    """A custom module with layers of Flax, whose parameters have no axis names."""

    def __init__(self, config, *, rngs, state=None):
        self.encoder = models.make_encoder(config, rngs=rngs)
        self.head = nnx.Linear(config.d_model, 3, rngs=rngs)
        self.scale = nnx.Param(jnp.ones(()))
        self.state = None if state is None else state(rngs)

    def __call__(self, tokens):
        return self.head(self.encoder(tokens)[0].states[:, 0]) * self.scale[...]


HEAD_CONFIG = models.EncoderConfig(11, d_model=8, num_heads=2, d_ff=16, num_layers=2)


def test_parameters_without_axes_are_not_sharded():
    net, tokens = pure(Head, HEAD_CONFIG), int32(np.ones((2, 4)))
    params, apply = drawn(net.shapes), quick(net.apply)
    names = {"head": {"kernel": (None, None), "bias": (None,)}, "scale": ()}
    assert {name: x for name, x in net.axes.items() if name != "encoder"} == names
    assert net.axes["encoder"]["embeddings"]["tokens"]["table"] == ("vocab", "model")
    plain, doubled = (np.asarray(apply(params | {"scale": np.float32(scale)}, tokens)) for scale in (1.0, 2.0))
    assert plain.shape == (2, 3)
    np.testing.assert_allclose(doubled, 2 * plain, rtol=1e-6)
    spread = sharding.Placement(sharding.mesh("fsdp=8")).params(net.shapes, net.axes)
    assert spread["head"]["kernel"].spec == PartitionSpec(None, None)


@pytest.mark.parametrize(
    ("state", "message"),
    [
        (lambda rngs: nnx.BatchNorm(3, rngs=rngs), r"state\.mean \(BatchStat\), state\.var \(BatchStat\)"),
        (lambda rngs: nnx.Dropout(0.5, rngs=nnx.Rngs(0)), r"state\.rngs\..*\(Rng\w+\).* functional\.dropout for nnx"),
        (lambda rngs: np.ones(2), r"state \(ndarray\).* constant array in an nnx\.Variable"),
    ],
)
def test_state_that_is_not_a_parameter_is_refused(state, message):
    with pytest.raises(TypeError, match="Head holds state that is not an nnx.Param: " + message):
        pure(Head, HEAD_CONFIG, state=state).shapes
    block = lambda rngs: nnx.List([state(rngs)])
    with pytest.raises(TypeError, match="holds state that is no"):
        modules.Stack(block, 2, rngs=nnx.Rngs(params=0))


def test_init_is_a_function_of_the_key():
    again, other = (INIT(jax.random.key(seed)) for seed in (0, 1))
    chex.assert_trees_all_equal(params(), again)
    kernels = lambda tree, part="encoder": np.asarray(tree[part]["stack"]["layers"]["attention"]["kernel"])
    assert not (kernels(params()) == kernels(other)).any()
    assert not (kernels(params())[0] == kernels(params())[1]).any()  # layers are drawn apart
    assert not (kernels(params()) == kernels(params(), "decoder")).any()


@pytest.mark.full
def test_init_under_vmap():
    """An ensemble: the same as initializing each."""
    keys = jax.random.split(jax.random.key(2), 2)
    many = quick(jax.vmap(NET.init))(keys)
    for i in range(2):
        one = quick(NET.init)(keys[i])
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a[i], b, rtol=1e-6), many, one)  # noqa: B023


def test_parameters_are_created_sharded():
    """Jitted with out_shardings, init gives the same numbers, already sharded over eight devices."""
    mesh = jax.make_mesh((8,), ("fsdp",), axis_types=(AxisType.Auto,))
    place = lambda names: NamedSharding(mesh, PartitionSpec(*("fsdp" if n == "model" else None for n in names)))
    shardings = jax.tree.map(place, NET.axes, is_leaf=lambda x: isinstance(x, tuple))
    born = quick(NET.init, out_shardings=shardings)(jax.random.key(0))
    assert jax.tree.all(jax.tree.map(lambda x, s: x.sharding == s, born, shardings))
    table = born["decoder"]["embeddings"]["tokens"]["table"]
    assert {s.data.shape for s in table.addressable_shards} == {(11, 1)}
    chex.assert_trees_all_close(born, params(), rtol=0, atol=1e-6)


def test_apply_refuses_parameters_of_another_model():
    wrong = jax.tree.map(lambda x: x, params())
    wrong["decoder"]["stack"]["layers"]["feed_forward"]["up"]["kernel"] = jnp.ones((1, 8, 17))
    tokens = jnp.ones((1, 2), jnp.int32)
    path = r"params\['decoder'\]\['stack'\]\['layers'\]\['feed_forward'\]\['up'\]\['kernel'\]"
    with pytest.raises(ValueError, match=path + r" has shape \(1, 8, 17\), the model has \(1, 8, 16\)"):
        NET.apply(wrong, tokens, tokens)
    del wrong["decoder"]["stack"]["layers"]["feed_forward"]["up"]["kernel"]
    with pytest.raises(ValueError, match=path + r" is missing, the model has \(1, 8, 16\)"):
        NET.apply(wrong, tokens, tokens)
    with pytest.raises(ValueError, match=r"params\['extra'\] has shape \(2,\), the model has nothing"):
        check_shapes(params() | {"extra": jnp.ones(2)}, NET.shapes)


def test_a_bound_model_has_its_methods():
    """`bind` gives the module itself, whose methods may be jitted."""
    model = NET.bind(params())
    assert type(model) is models.EncoderDecoder
    run = lambda params: NET.bind(params).decode(TOKENS, NET.bind(params).encode(TOKENS))
    expected = APPLY(params(), TOKENS, TOKENS)
    np.testing.assert_allclose(quick(run)(params()), expected, atol=1e-6)


def test_the_form_of_other_parameters_is_named():
    """Those of nnx.state, a variable collection of Flax Linen, and the state of a training."""
    state = nnx.State({"decoder": {"kernel": nnx.Param(jnp.ones(2))}})
    for other in (state, {"params": params()}, (params(),)):
        with pytest.raises(ValueError, match=r"do not belong to this model.*; parameters are a nested dict of"):
            check_shapes(other, NET.shapes)
