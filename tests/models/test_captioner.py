"""Captioners: the memory of an image, the law of decoding, searches, losses, and the gradient of hard attention."""

import dataclasses
import functools
import itertools
from types import SimpleNamespace

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer import decoding, functional, models
from jaxformer.models import choices
from tests.decoding import searches
from tests.models.small import TARGET, TARGET_VALID, TARGETS, B, Small, T, V
from tests.modules.small import int32, normal, quick
from tests.selection import first

near = functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5)
GRID = models.GridConfig(image_size=(6, 10), widths=(4, 6), num_blocks=1)
S = 3 * 5
RECURRENT = {"image": GRID, "vocab_size": V, "d_model": 8, "d_hidden": 6, "d_attention": 5}
CONFIGS = {
    "soft": models.RecurrentCaptionerConfig(**RECURRENT, num_layers=2, grid_positions=True, tie_embeddings=False),
    "hard": models.RecurrentCaptionerConfig(**RECURRENT, attention=choices.HardAttention(), cell="gru"),
    "transformer": models.TransformerCaptionerConfig(
        image=GRID, vocab_size=V, d_model=8, num_heads=2, d_ff=12, max_positions=T
    ),
}
IMAGES = normal(B, 6, 10, 3)


def kind_of(config):
    recurrent = isinstance(config, models.RecurrentCaptionerConfig)
    return models.RecurrentCaptioner if recurrent else models.TransformerCaptioner


@functools.cache
def small(name):
    return Small(CONFIGS[name], kind_of(CONFIGS[name]))


def begun(model, params, **sizes):
    """The model with its step from the first state."""
    bound = model.net.bind(params)
    context, state = bound.start(bound.encode(IMAGES), **sizes)
    return bound, (lambda tokens, state: bound.step(tokens, state, context)), state, context


@pytest.mark.parametrize("name", first(CONFIGS, "soft"))
def test_steps_equal_the_whole_pass_and_a_beam_of_one_is_greedy(name):
    model = small(name)

    def run(params):
        bound, step, state, context = begun(model, params, beam_size=2, length=T)
        rows, first = [], state
        for t in range(T):
            row, state = step(jnp.stack([TARGET[:, t], 1 - TARGET[:, t] % 2], 1), state)
            rows.append(row)
        some = jnp.broadcast_to(TARGET[:, None, :3], (B, 2, 3))
        last, ragged = bound.prefill(some, first, context, lengths=jnp.broadcast_to(int32([3, 2]), (B, 2)))
        more, _ = bound.step(TARGET[:, 3:1:-1], ragged, context)
        _, step, state, _ = begun(model, params, beam_size=1, length=T)
        options = {"max_length": T, "bos": 1, "eos": 2}
        one = searches.beam_search(step, state, beam_size=1, **options)
        return jnp.stack(rows, 2), last, more, one, searches.greedy(step, state, **options)

    steps, last, more, beam, greedy = jax.device_get(quick(run)(model.params))
    for hypothesis, tokens in enumerate((np.asarray(TARGET), 1 - np.asarray(TARGET) % 2)):
        near(steps[:, hypothesis], model.apply(model.params, IMAGES, tokens))
    near(last, np.stack([steps[:, 0, 2], steps[:, 0, 1]], 1))  # after three tokens, and after two and padding
    near(more, np.stack([steps[:, 0, 3], steps[:, 0, 2]], 1))
    np.testing.assert_array_equal(beam.tokens, greedy.tokens)
    near(beam.log_probs, greedy.log_probs)


@pytest.mark.full
@pytest.mark.parametrize("name", first(CONFIGS, "soft"))
def test_the_log_probability_of_the_best_beam_is_that_of_its_tokens(name):
    """Also after its state was reordered, in draws, and in an ensemble of a model with itself."""
    model = small(name)

    def run(params):
        _, step, state, _ = begun(model, params, beam_size=3, length=T)
        options = {"max_length": T, "bos": 1, "eos": 2}
        best = searches.beam_search(step, state, beam_size=3, **options)
        drawn = searches.sample(step, state, key=jax.random.key(0), forced_end="scored", **options)
        twice = decoding.ensemble([step, step])
        pair = searches.beam_search(twice, decoding.EnsembleState((state, state)), beam_size=3, **options)
        return best, drawn, pair

    best, drawn, pair = jax.device_get(quick(run)(model.params))
    logits_of = quick(model.net.apply)
    np.testing.assert_array_equal(pair.tokens, best.tokens)
    for found in (best, drawn):
        tokens, lengths = np.asarray(found.tokens[:, 0]), np.asarray(found.lengths[:, 0])
        inputs = np.concatenate([np.ones((B, 1), int), tokens[:, :-1]], 1)
        logits = logits_of(model.params, IMAGES, int32(inputs))
        logits = logits if found is best else logits.at[..., 1].set(-jnp.inf)  # draws are from what is allowed
        log_probs = jax.nn.log_softmax(logits)
        chosen = np.take_along_axis(np.asarray(log_probs), tokens[..., None], 2)[..., 0]
        chosen = np.where(np.arange(T) < lengths[:, None], chosen, 0)
        near(found.token_log_probs[:, 0], chosen)
    assert len({tuple(row) for row in np.asarray(best.tokens[0])}) == 3  # the n best differ


@pytest.mark.parametrize("gated", first([False, True], True))
def test_a_step_is_that_of_show_attend_and_tell(gated):
    """I1, I2, I3, I4: the first states and the second step with its logits, by Xu et al. 2015, 3.1 and 4.2.1."""
    config = models.RecurrentCaptionerConfig(**RECURRENT, num_layers=2, context_gate=gated)
    model = Small(config, models.RecurrentCaptioner)

    def run(params):
        bound, step, start, context = begun(model, params, beam_size=1, length=T)
        _, state = step(TARGET[:, :1], start)
        logits, weights, after = bound.attending_step(TARGET[:, 1:2], state, context)
        query = state.layers[-1].hidden
        gate = jax.nn.sigmoid(query @ params["decoder"]["gate"]["kernel"]) if gated else jnp.ones((B, 1, 1))
        seen = gate * jnp.einsum("bks,bsc->bkc", weights, context.states)
        x = jnp.concatenate([bound.decoder.embeddings(functional.Tokens(TARGET[:, 1:2])), seen], -1)
        _, own = bound.decoder.stack.step(x, state.layers)
        first = jnp.concatenate(jax.tree.leaves(start.layers), -1)
        found = context.states, first, query, weights, seen, after.layers[-1].hidden, logits
        return [x[:, 0] if x.shape[1] == 1 else x for x in (*found, own[-1].hidden)]

    params = dict(model.params)
    if gated:
        params["decoder"] = params["decoder"] | {"gate": params["decoder"]["gate"] | {"bias": np.zeros(1, np.float32)}}
    grid, started, query, weights, seen, hidden, logits, own = map(np.asarray, quick(run)(params))
    p = jax.tree.map(np.asarray, params["decoder"])
    assert grid.shape == (B, S, 6)
    near(started, np.tanh(grid.mean(1) @ p["bridge"]["kernel"] + p["bridge"]["bias"]))
    alignment = p["alignment"]
    inside = (query @ alignment["w_query"]["kernel"])[:, None] + grid @ alignment["w_key"]["kernel"]
    near(weights, jax.nn.softmax(np.tanh(inside) @ alignment["v"], -1))
    near(hidden, own)
    output = np.tanh(np.concatenate([hidden, seen], -1) @ p["readout"]["kernel"])
    near(logits, output @ p["embeddings"]["tokens"]["table"].T)


@pytest.mark.full
@pytest.mark.parametrize("name", first(CONFIGS, "hard"))
def test_padding_changes_nothing_and_no_row_sees_a_later_token_or_another_image(name):
    model = small(name)
    apply = lambda images, *tokens: np.asarray(model.apply(model.params, images, functional.Tokens(*tokens)))
    images, target = np.array(IMAGES), np.array(TARGET)
    logits = apply(images, target, TARGET_VALID)
    assert (logits.shape, logits.dtype) == ((B, T, V), np.float32)
    target[:, 3] = 5
    changed = (apply(images, target, TARGET_VALID) != logits).any(-1)
    assert not changed[:, :3].any()
    assert changed[:, 3].all()
    images[1] += 1
    other = apply(images, TARGET, TARGET_VALID)
    near(other[0], logits[0])
    assert np.abs(other[1] - logits[1]).max() > 1e-3
    shorter = apply(IMAGES, np.asarray(TARGET)[:, :4])
    near(logits[:, :4], shorter)


@pytest.mark.full
@pytest.mark.parametrize("name", ["soft", "transformer"])
def test_the_loss_equals_that_of_the_logits_and_depends_on_every_parameter(name):
    model, labels = small(name), jnp.roll(TARGET, -1, 1)
    shared = {"smoothing": 0.1, "z_loss": 0.01}
    options = {"labels": labels, "loss": functional.CrossEntropy(**shared)}

    def loss(params):
        bound = model.net.bind(params)
        kind = functools.partial(bound.doubly_stochastic_loss, weight=0.7) if name == "soft" else bound.loss
        return kind(IMAGES, TARGETS, **options)

    (total, count), gradients = quick(jax.value_and_grad(loss, has_aux=True))(model.params)
    logits = model.apply(model.params, IMAGES, TARGETS)
    expected, tokens = functional.cross_entropy(logits, labels, where=TARGET_VALID, **shared)
    if name == "soft":
        captured = model.call(models.RecurrentCaptioner.captured, model.params, IMAGES, TARGET)["decoder.cross"]
        weights = captured.layer(0).weights()[:, 0]
        assert weights.shape == (B, T, S)
        received = np.where(np.asarray(TARGET_VALID)[..., None], weights, 0).sum(1)
        expected += 0.7 * np.square(1 - received).sum()
    near((total, count), (expected, tokens))
    assert all(np.asarray(leaf).any() for leaf in jax.tree.leaves(gradients))


@pytest.mark.full
def test_a_row_without_a_caption_counts_nothing():
    """It fills up a batch."""
    model, valid = small("soft"), TARGET_VALID.at[1].set(False)
    bound = model.net.bind(model.params)

    def loss(rows):
        tokens = functional.Tokens(TARGET[rows], valid[rows])
        return bound.doubly_stochastic_loss(IMAGES[rows], tokens, labels=TARGET[rows], weight=1.0)

    near(loss(slice(None)), loss(slice(1)))


@pytest.mark.full
def test_hard_attention_attends_to_one_position():
    """The forced one; without noise, the most probable one."""
    model = small("hard")
    kind, first_token = models.RecurrentCaptioner, np.asarray(TARGET)[:, :1]
    memory = model.call(kind.encode, model.params, IMAGES)
    context, state = model.call(kind.start, model.params, memory, beam_size=1, length=T)
    step = lambda context: np.asarray(model.call(kind.step, model.params, first_token, state, context)[0])
    context = jax.device_get(context)
    only = lambda i: context._replace(states=context.states[:, i : i + 1], keys=context.keys[:, i : i + 1])
    forced, bound = jnp.zeros((B, T, S)).at[:, :, 7].set(jnp.inf), model.net.bind(model.params)
    logits = np.asarray(bound.head.logits(bound.decoder(TARGET, memory, noise=forced)[0]))
    near(logits[:, 0], step(only(7))[:, 0])
    _, weights, _ = model.call(kind.attending_step, model.params, first_token, state, context)
    near(step(context)[0], step(only(int(np.asarray(weights)[0, 0].argmax())))[0])


@functools.cache
def enumerable():
    """A grid of 1 x 3 positions and 3 tokens: 27 ways to look at them."""
    grid = models.GridConfig(image_size=(1, 3), widths=(4,), num_blocks=1)
    sizes = {"d_model": 4, "d_hidden": 4, "grid_positions": True}
    config = models.RecurrentCaptionerConfig(image=grid, vocab_size=5, attention=choices.HardAttention(), **sizes)
    model = Small(config, models.RecurrentCaptioner)
    model.params = jax.tree.map(lambda x: 3 * np.asarray(x), model.params) | {"baseline": jnp.float32(-0.6)}
    return model


def enumerated():
    """A batch with every way to look at one image, as forced noise, and the tokens."""
    ways = np.array(list(itertools.product(range(3), repeat=3)))
    noise = np.where(np.arange(3) == ways[..., None], np.inf, 0.0)
    image = np.random.default_rng(4).standard_normal((1, 1, 3, 3)).astype(np.float32)
    images = np.broadcast_to(image, (len(ways), 1, 3, 3))
    tokens, labels = (np.broadcast_to(row, (len(ways), 3)) for row in ([1, 3, 4], [3, 4, 2]))
    return ways, *jax.device_put((noise.astype(np.float32), images)), int32(tokens), int32(labels)


def log_of_ways(model, params):
    """The log-probabilities of the tokens, given each way, and of each way."""
    ways, noise, images, tokens, labels = enumerated()
    bound = model.net.bind(params)
    x, weights = bound.decoder(tokens, bound.encode(images), noise=noise)
    log_probs = jax.nn.log_softmax(bound.head.logits(x))
    of_tokens = jnp.take_along_axis(log_probs, labels[..., None], 2)[..., 0].sum(1)
    return of_tokens, jnp.log(jnp.take_along_axis(weights, int32(ways)[..., None], 2)[..., 0]).sum(1)


def test_the_expected_gradient_of_hard_attention_is_the_exact_one():
    """I6: all 27 ways, weighted by their probability: the gradient of the expected log-likelihood, for any baseline."""
    model = enumerable()

    def exact(params):
        of_tokens, of_way = log_of_ways(model, params)
        return -(jnp.exp(of_way) * of_tokens).sum(), jnp.exp(of_way)

    def expected(params, probabilities):
        """The mean of the gradients of each way."""
        _, *batch = enumerated()

        def estimate(params, noise, *row):
            tokens, labels = (x[None] for x in row[1:])
            return model.net.bind(params).reinforced_loss(row[0][None], tokens, noise[None], labels=labels)[0]

        gradients = jax.vmap(jax.grad(estimate), (None, 0, 0, 0, 0))(params, *batch)
        mean = jax.tree.map(lambda x: jnp.tensordot(probabilities, x, 1), gradients)
        return mean, probabilities, gradients["decoder"]["alignment"]["v"][0]

    def run(params):
        gradient, probabilities = jax.grad(exact, has_aux=True)(params)
        return gradient, *expected(params, probabilities)

    compiled, of_one_way = quick(run), []
    for baseline in (0.0, -2.5):
        params = model.params | {"baseline": jnp.float32(baseline)}
        wanted, found, probabilities, one = jax.device_get(compiled(params))
        of_one_way.append(one)
        near(probabilities.sum(), 1.0)
        assert probabilities.max() < 0.9
        for gradient in (wanted, found):
            gradient.pop("baseline")
        chex.assert_trees_all_close(found, wanted, rtol=2e-4, atol=2e-5)
        # Weights choose and do not mix, so without the term of the draws their gradient is 0.
        assert np.abs(wanted["decoder"]["alignment"]["v"]).max() > 1e-3
    assert np.abs(of_one_way[0] - of_one_way[1]).max() > 1e-3  # the baseline moves what is averaged


def test_draws_follow_the_weights():
    """With Gumbel noise, the frequencies of the first position are its weights."""
    weights = np.array([[0.1, 0.6, 0.3]], np.float32)

    def pick(key):
        return functional.pick_position(jnp.broadcast_to(weights, (4000, 3)), jax.random.gumbel(key, (4000, 3)))

    drawn = np.bincount(np.asarray(quick(pick)(jax.random.key(0))))
    np.testing.assert_allclose(drawn / 4000, weights[0], atol=0.03)


@pytest.mark.full
def test_the_value_of_the_reinforced_loss_is_the_cross_entropy_and_the_entropy():
    model = enumerable()
    _, noise, images, ids, labels = enumerated()
    tokens = functional.Tokens(ids, valid := jnp.ones(ids.shape, bool).at[:, 2].set(False))

    def loss(params, entropy):
        bound = model.net.bind(params)
        return bound.reinforced_loss(images, tokens, noise, labels=labels, entropy=entropy)

    (total, count), slope = quick(jax.value_and_grad(lambda p: loss(p, 0.0), has_aux=True))(model.params)
    bound = model.net.bind(jax.tree.map(jnp.asarray, model.params))
    x, weights = bound.decoder(tokens, bound.encode(images), noise=noise)
    near((total, count), functional.cross_entropy(bound.head.logits(x), labels, where=valid))
    entropy = functional.weights_entropy(weights)[:, :2].sum()
    near(quick(lambda p: loss(p, 0.5))(model.params)[0], total - 0.5 * entropy)
    near(slope["baseline"] / count, model.params["baseline"] + total / count)  # down, it is a moving average
    soft = small("soft").net.bind(small("soft").params)
    with pytest.raises(ValueError, match="needs a model with attention hard, got soft"):
        soft.reinforced_loss(IMAGES, TARGET, IMAGES[:, :T, 0], labels=TARGET)


@pytest.mark.full
def test_rows_of_the_mean_are_trained_as_by_soft_attention():
    """Loss and gradients are the sum of those of a soft captioner on these rows and of hard attention on the others."""
    hard = enumerable()
    soft = Small(dataclasses.replace(hard.config, attention=choices.SoftAttention()), models.RecurrentCaptioner)
    _, noise, images, tokens, labels = (x[9:13] for x in enumerated())
    mean = np.array([True, False, True, True])
    only = lambda rows: [x[np.flatnonzero(rows)] for x in (images, tokens)]

    def mixed(params):
        given = {"labels": labels, "mean": jnp.asarray(mean)}
        return hard.net.bind(params).reinforced_loss(images, tokens, noise, **given)[0]

    def parts(params):
        rest = {name: value for name, value in params.items() if name != "baseline"}
        return (
            soft.net.bind(rest).loss(*only(mean), labels=labels[mean])[0]
            + hard.net.bind(params).reinforced_loss(*only(~mean), noise[1:2], labels=labels[~mean])[0]
        )

    (got, gradient), (expected, wanted) = (quick(jax.value_and_grad(f))(hard.params) for f in (mixed, parts))
    near(got, expected)
    assert abs(float(gradient.pop("baseline") - wanted.pop("baseline"))) > 0.1  # all rows move the baseline
    jax.tree.map(near, gradient, wanted)
    assert all(np.abs(x).max() > 1e-4 for x in jax.tree.leaves(gradient["decoder"]["alignment"]))


@pytest.mark.full
def test_a_weight_of_zero_that_is_not_drawn_has_no_slope():
    """Of saturated attention, the log of the weight at a forced position is infinite; its rows attend softly here."""
    model = enumerable()
    _, noise, images, tokens, labels = (x[9:13] for x in enumerated())
    alignment = model.params["decoder"]["alignment"]
    params = model.params | {
        "decoder": model.params["decoder"] | {"alignment": alignment | {"v": alignment["v"] * 1e5}}
    }

    def loss(params):
        bound, all_rows = model.net.bind(params), jnp.ones(4, bool)
        return bound.reinforced_loss(images, tokens, noise, labels=labels, mean=all_rows)[0]

    value, slope = quick(jax.value_and_grad(loss))(params)
    assert np.isfinite(value)
    chex.assert_tree_all_finite(slope)


def test_a_label_that_is_no_token_has_no_reward_at_padding():
    """The gradient of the baseline was NaN. The decoder is a stub with 5 equal logits and 3 equal weights."""
    labels, valid = int32([[3, 4, -100]]), jax.device_put(np.array([[True, True, False]]))
    decoder = functools.partial(lambda *_, **__: (None, jnp.full((1, 3, 3), 1 / 3)))
    head = SimpleNamespace(logits=lambda _: jnp.zeros((1, 3, 5)))

    def loss(baseline):
        captioner = SimpleNamespace(encode=lambda _: None, decoder=decoder, head=head, baseline=baseline)
        batch = captioner, normal(1, 1, 3, 3), functional.Tokens(labels, valid), jnp.zeros((1, 3, 3))
        return models.RecurrentCaptioner.reinforced_loss(*batch, labels=labels)[0]

    near(quick(jax.value_and_grad(loss))(jnp.float32(-0.6)), (2 * np.log(5), 2 * (np.log(5) - 0.6)))


@pytest.mark.full
def test_grid_positions_distinguish_positions_of_a_feature():
    """Without them, the memory of a uniform image is the same away from its borders."""
    even = np.ones((1, 6, 40, 3), np.float32)
    for known in (False, True):
        image = models.GridConfig(image_size=(6, 40), widths=(4, 6), num_blocks=1)
        config = models.RecurrentCaptionerConfig(**RECURRENT | {"image": image}, grid_positions=known)
        model = Small(config, models.RecurrentCaptioner)
        states = np.asarray(model.call(models.RecurrentCaptioner.encode, model.params, even).states).reshape(3, 20, 6)
        assert np.allclose(states[1, 8], states[1, 12], atol=1e-5) != known
