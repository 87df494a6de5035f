"""What all models with a head share: own losses, captured attention by name, and packed training."""

import dataclasses
import functools
import itertools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer import functional, models, pure
from jaxformer.models import choices
from jaxformer.models.token_model import TokenModel, check_names, of_part, part_of
from tests.models.small import (
    CONFIGS,
    LANGUAGE_CONFIGS,
    SOURCES,
    TARGET,
    TARGET_VALID,
    TARGETS,
    Small,
    V,
    language_model,
    model,
)
from tests.modules.small import int32, quick
from tests.selection import first

LABELS = int32([[2, 9, 10, 2, -100], [10, 2, 9, 2, -100]])


@dataclasses.dataclass(frozen=True)
class Focal(functional.LogitLoss):
    """A user's own loss: labels that are predicted well already count less."""

    gamma: float = 2.0

    def value(self, logits, labels, where):
        chosen = jnp.take_along_axis(jax.nn.log_softmax(logits), jnp.maximum(labels, 0)[..., None], -1)[..., 0]
        return -jnp.where(where, (1 - jnp.exp(chosen)) ** self.gamma * chosen, 0.0).sum()


@dataclasses.dataclass(frozen=True)
class Apart(functional.LogitLoss):
    """A user's own loss of two passes: how far their logits of each token are apart."""

    passes = 2

    def value(self, logits, labels, where):
        return jnp.where(where, jnp.square(logits[..., 0, :] - logits[..., 1, :]).sum(-1), 0.0).sum()


def encoder_config(**options):
    return models.EncoderConfig(V, d_model=8, num_heads=2, d_ff=12, num_layers=1, norm_position="pre", **options)


def shallow(name, **options):
    return dataclasses.replace(CONFIGS[name], num_encoder_layers=1, num_decoder_layers=1, **options)


NETWORKS = {
    "language model": (models.LanguageModel, dataclasses.replace(LANGUAGE_CONFIGS["untied"], num_layers=1)),
    "translator": (models.EncoderDecoder, shallow("post")),
    "masked language model": (models.MaskedLanguageModel, encoder_config()),
}


def inputs_of(kind):
    return (SOURCES, TARGETS) if kind is models.EncoderDecoder else (TARGETS,)


def assert_alike(losses, params):
    """Values, counts and all gradients are equal."""
    slopes = [jax.value_and_grad(loss, has_aux=True) for loss in losses]
    found, expected = quick(lambda params: [slope(params) for slope in slopes])(params)  # what they share compiles once
    chex.assert_trees_all_close(found, expected, rtol=1e-4, atol=2e-5)
    assert any(np.asarray(leaf).any() for leaf in jax.tree.leaves(expected[1]))
    return found


@pytest.mark.parametrize("name", first(NETWORKS, "language model"))
def test_an_own_loss_fits_every_network(name):
    """Value, count and gradients are those of its direct value on the logits; padding does not count."""
    kind, config = NETWORKS[name]
    small, inputs = Small(config, kind), inputs_of(kind)

    def own(params):
        return small.net.bind(params).loss(*inputs, labels=LABELS, loss=Focal(1.5))

    def direct(params):
        return Focal(1.5).value(small.net.apply(params, *inputs), LABELS, TARGET_VALID), TARGET_VALID.sum()

    (_, count), _ = assert_alike((own, direct), small.params)
    assert float(count) == 8


@pytest.mark.full
def test_an_own_loss_compares_two_passes():
    """Rows and their copies have different dropout; without it they are not apart."""
    small = Small(dataclasses.replace(LANGUAGE_CONFIGS["tied"], num_layers=1, dropout=0.3), models.LanguageModel)
    (tokens, labels), key = jax.tree.map(functional.duplicate_rows, (TARGETS, LABELS)), jax.random.key(3)

    def own(params):
        return small.net.bind(params).loss(tokens, labels=labels, loss=Apart(), key=key)

    def direct(params):
        logits = small.net.apply(params, tokens, key=key)
        passes = jnp.stack([logits[::2], logits[1::2]], 2)
        return Apart().value(passes, LABELS, TARGET_VALID), TARGET_VALID.sum()

    (value, _), _ = assert_alike((own, direct), small.params)
    assert value > 1
    still = quick(lambda params: small.net.bind(params).loss(tokens, labels=labels, loss=Apart())[0])
    np.testing.assert_allclose(still(small.params), 0, atol=1e-6)


@pytest.mark.parametrize("name", first(NETWORKS, "masked language model"))
def test_log_probs_are_those_of_the_logits(name):
    kind, config = NETWORKS[name]
    small, inputs, labels = Small(config, kind), inputs_of(kind), int32(np.maximum(LABELS, 0))

    @quick
    def both(params):
        model = small.net.bind(params)
        return model.log_probs(*inputs, labels=labels), jax.nn.log_softmax(model(*inputs))

    found, everything = both(small.params)
    expected = np.take_along_axis(np.asarray(everything), labels[..., None], 2)[..., 0]
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_log_probs_of_labels_outside_of_the_vocabulary_are_refused():
    """As by the loss: a label of -100 had the log-probability of token 0. Labels of padding do not count."""
    small, run = (
        language_model("tied"),
        lambda *inputs, **labels: jax.eval_shape(
            lambda params: small.net.bind(params).log_probs(*inputs, **labels), small.params
        ),
    )
    assert run(TARGETS, labels=LABELS).shape == LABELS.shape
    counted = LABELS != 10
    assert run(TARGETS, labels=jnp.where(counted, LABELS, V), where=counted & TARGET_VALID).shape == LABELS.shape
    for labels in (LABELS, jnp.maximum(LABELS, 0).at[0, 0].set(V)):
        with pytest.raises(ValueError, match=r"^labels must be in \[0, V = "):
            run(TARGET, labels=labels)


def test_all_attentions_are_captured_by_default():
    small = model("post")

    @quick
    def captured(params):
        capture = functools.partial(small.net.bind(params).captured, SOURCES, TARGETS)
        return capture(), capture(names=("decoder.cross",)), capture(names=())

    found, some, none = captured(small.params)
    assert found.keys() == set(models.EncoderDecoder.attention_names)
    assert some.keys() == {"decoder.cross"}
    np.testing.assert_allclose(some["decoder.cross"].query, found["decoder.cross"].query, rtol=1e-6)
    assert none == {}


def test_unknown_names_are_refused():
    with pytest.raises(ValueError, match=r"unknown attention names \['c'\]; there are \['a', 'b'\]"):
        check_names(["c", "a"], ("b", "a"))
    check_names([], ("a",))
    bound = language_model("tied").net.bind(language_model("tied").params)
    with pytest.raises(ValueError, match=r"unknown attention names \['decoder.cross'\]; there are \['decoder.self'\]"):
        bound.captured(TARGET, names=["decoder.cross"])


def test_names_of_parts():
    assert part_of(("encoder.self", "decoder.self"), "decoder") == ["self"]
    assert of_part({"self": 1, "experts": 2}, "encoder") == {"encoder.self": 1, "encoder.experts": 2}


def test_a_subclass_defines_states_and_a_head():
    with pytest.raises(NotImplementedError, match="TokenModel does not define states"):
        TokenModel().states(TARGET)
    with pytest.raises(NotImplementedError, match="TokenModel does not define head"):
        TokenModel().head


PAIRS = [([3, 4, 5], [1, 9]), ([6, 7], [1, 10, 2, 9]), ([8, 3, 9, 4], [1, 2, 3]), ([5], [1, 11])]
ROWS = [PAIRS[:2], PAIRS[2:]]
"""Sentences with their translations; packed, there are two in a row."""


def padded(sequences, length):
    """Each sequence in a row of its own."""
    ids = int32([row + [0] * (length - len(row)) for row in sequences])
    return functional.Tokens(ids, jnp.asarray([[t < len(row) for t in range(length)] for row in sequences]))


def packed(rows, length):
    """All sequences of a row one after another, with their numbers and positions that restart; then padding."""

    def joined(parts):
        filled = ([*parts(row), [0] * (length - sum(map(len, row)))] for row in rows)
        return int32([list(itertools.chain(*parts)) for parts in filled])

    segments = joined(lambda row: [[i] * len(own) for i, own in enumerate(row, 1)])
    return functional.Tokens(
        joined(lambda row: row), segments > 0, joined(lambda row: [range(len(own)) for own in row]), segments
    )


@pytest.mark.parametrize("name", first(["post", "pre", "rotary", "t5"], "post"))
def test_packed_training_of_a_translator(name):
    """Segments and positions on both sides give the loss and the gradients of the sentences in rows of their own."""
    schemes = {"rotary": choices.Rotary(), "t5": choices.T5()}
    config = shallow(name) if name in CONFIGS else shallow("pre", positions=schemes[name])
    small = Small(config)
    read = lambda row: [source for source, _ in row]
    said = lambda row: [target for _, target in row]
    alone = padded(read(PAIRS), 4), padded(said(PAIRS), 4)
    together = packed(list(map(read, ROWS)), 6), packed(list(map(said, ROWS)), 7)
    following = lambda tokens: tokens.ids % 7 + 3  # some label of each token

    def loss(params, source, target):
        return small.net.bind(params).loss(source, target, labels=following(target))

    slope = quick(jax.value_and_grad(loss, has_aux=True))
    (expected, count), wanted = slope(small.params, *alone)
    (found, packed_count), got = slope(small.params, *together)
    assert float(count) == float(packed_count) == 11
    np.testing.assert_allclose(found / count, expected / count, rtol=1e-6)
    scale = max(np.abs(leaf).max() for leaf in jax.tree.leaves(wanted))
    for a, b in zip(*map(jax.tree.leaves, (got, wanted)), strict=True):
        np.testing.assert_allclose(a / scale, b / scale, atol=1e-6)
    one = [dataclasses.replace(tokens, segments=tokens.valid.astype(jnp.int32)) for tokens in together]
    for sides in ((one[0], together[1]), (together[0], one[1])):  # a segment for a whole row changes the loss
        assert abs(float(slope(small.params, *sides)[0][0] / found) - 1) > 1e-4


@pytest.mark.full
@pytest.mark.parametrize("name", NETWORKS)
def test_initial_logits_are_modest(name):
    """At the start every token is about as likely as another: the loss is near log V, so training starts well."""
    (kind, config), sizes = NETWORKS[name], {"d_model": 64, "num_heads": 4, "d_ff": 128}
    sizes |= {field.name: 300 for field in dataclasses.fields(config) if field.name.endswith("vocab_size")}
    net, labels = pure(kind, dataclasses.replace(config, **sizes)), int32(np.roll(TARGET, -1, 1))
    loss = lambda key: functional.cross_entropy(net.apply(net.init(key), *inputs_of(kind)), labels)
    total, count = quick(loss)(jax.random.key(0))
    assert abs(float(total / count) - np.log(300)) < 1.5  # a tied table starts by favoring the input token
