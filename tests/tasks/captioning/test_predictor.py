"""The captioner: its search is that of the model, and its maps are the model's attention."""

import dataclasses
import functools

import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer import decoding
from jaxformer.errors import ConfigError
from jaxformer.tasks.captioning import (
    TASK,
    Beam,
    CaptioningConfig,
    DecodeConfig,
    ImageCaptioner,
    Sample,
    predictor,
)
from jaxformer.tasks.images import normalized
from jaxformer.tokenizers.characters import CharacterTokenizer
from tests.data.pictures import encoded
from tests.modules.small import drawn, quick
from tests.tasks.captioning.small import RECURRENT, TRANSFORMER
from tests.tasks.vision.small import picture

IMAGES = np.stack([np.asarray(picture(i)) for i in range(3)])


@functools.cache
def captioner(model):
    tokenizer = CharacterTokenizer.train(["a dark and light picture"])
    net = TASK.network(CaptioningConfig(model=model), tokenizer.vocab_size).net
    decode = DecodeConfig(search=Beam(beam_size=3), batch_size=2, max_length=6)
    return ImageCaptioner(net, drawn(net.shapes, 0.5), tokenizer, decode)


@pytest.mark.full
@pytest.mark.parametrize(
    "model", [RECURRENT, pytest.param(TRANSFORMER, marks=pytest.mark.full)], ids=["recurrent", "transformer"]
)
def test_candidates_do_not_depend_on_the_batch(model):
    """Three images in batches of two have the same results as each alone, best first."""
    own = captioner(model)
    found = own.candidates(IMAGES, n_best=3)
    special = own.tokenizer.special

    def search(params):
        bound = own.net.bind(params)
        context, state = bound.start(bound.encode(normalized(jnp.asarray(IMAGES))), beam_size=3, length=6)
        limits = decoding.Limits(max_length=6, bos=special.bos, eos=special.eos, pad=special.pad)
        return decoding.beam_search(decoding.ContextStep(bound.step, context), state, limits, beam_size=3)

    wanted = quick(search)(own.params)
    for row, best in enumerate(found):
        assert [c.score for c in best] == sorted((c.score for c in best), reverse=True)
        np.testing.assert_allclose([c.score for c in best], wanted.scores[row], rtol=1e-4)
        for rank, one in enumerate(best):
            tokens = [t for t in np.asarray(wanted.tokens[row, rank]).tolist() if t not in (special.eos, special.pad)]
            assert list(one.tokens) == tokens
            assert one.text == own.tokenizer.decode(tokens)


@pytest.mark.full
def test_pixels_are_sent_as_bytes_and_normalized_in_the_search(monkeypatch):
    """A batch is searched while the previous one is read."""
    done, hypotheses = [], ImageCaptioner._hypotheses

    def spy(self, decode, batch, **options):
        done.append((type(batch.inputs), batch.inputs.dtype.name))
        return hypotheses(self, decode, batch, **options)

    monkeypatch.setattr(ImageCaptioner, "_hypotheses", spy)
    captioner(RECURRENT).candidates(IMAGES, progress=done.append)
    assert done == [(np.ndarray, "uint8"), (np.ndarray, "uint8"), 2, 1]


@pytest.mark.full
def test_draws_follow_the_seed_and_the_number_of_the_image():
    own = captioner(RECURRENT)
    drawn = dataclasses.replace(own, decode=DecodeConfig(search=Sample(seed=1), batch_size=3, max_length=6))
    texts = [[c.text for c in best] for best in drawn.candidates(IMAGES, n_best=2)]
    again = [[c.text for c in best] for best in drawn.candidates(IMAGES[1:2], n_best=2, first=2)]
    assert again == [texts[1]]
    assert len({text for best in texts for text in best}) > 1


@pytest.mark.full
@pytest.mark.parametrize(
    "model", [RECURRENT, pytest.param(TRANSFORMER, marks=pytest.mark.full)], ids=["recurrent", "transformer"]
)
def test_maps_are_the_attention_of_the_steps(model):
    own, texts = captioner(model), ["a dark", "light", "a"]
    found = own.attention(IMAGES, texts)
    assert [len(pieces.target) for pieces in found] == [7, 6, 2]
    assert [name.strip("\u2581") for name in found[0].source[:5]] == ["0,0", "0,1", "0,2", "0,3", "1,0"]  # row by row

    @quick
    def first_step(params):
        bound = own.net.bind(params)
        context, state = bound.start(bound.encode(normalized(jnp.asarray(IMAGES))), beam_size=1, length=8)
        return bound.attending_step(jnp.full((3, 1), own.tokenizer.special.bos, jnp.int32), state, context)

    _, weights, _ = first_step(own.params)
    for row, pieces in enumerate(found):
        assert pieces.weights.shape[2:] == (len(pieces.target), 16)
        np.testing.assert_allclose(pieces.weights[-1, :, 0].mean(0), weights[row, 0], rtol=1e-4, atol=1e-6)
    words = own.attention_maps(IMAGES, texts)
    assert [one.target for one in words] == [("a", "dark", "</s>"), ("light", "</s>"), ("a", "</s>")]
    np.testing.assert_allclose(words[0].weights.sum(1), 1, rtol=1e-5)


def test_each_image_needs_a_caption():
    """An additional caption would be ignored."""
    own = captioner(RECURRENT)
    for captions in (["a"], ["a"] * 4):
        with pytest.raises(ValueError, match=f"each image needs a caption, got 3 images and {len(captions)} captions"):
            own.attention(IMAGES, captions)


def test_files(tmp_path):
    """Of any size; see tests/tasks/test_images.py for those that are refused."""
    own = captioner(RECURRENT)
    (tmp_path / "a.png").write_bytes(encoded(picture(1)))
    picture(0, 20).save(tmp_path / "large.png")
    assert own.read(tmp_path / "large.png").shape == (8, 8, 3)
    texts = own.caption([tmp_path / "a.png", tmp_path / "large.png"])
    assert texts[0] == own.candidates(np.stack([own.read(tmp_path / "a.png")]))[0][0].text
    assert own.caption([]) == []
    with pytest.raises(ConfigError, match="n_best must be at least 1 and at most beam_size = 3, got 4"):
        own.candidates(IMAGES, n_best=4)
    with pytest.raises(ValueError, match=r"images must be \[N, 8, 8, 3\], got \[3, 8, 8\]"):
        own.candidates(IMAGES[..., 0])


@pytest.mark.full
@pytest.mark.parametrize("model", [RECURRENT, TRANSFORMER], ids=["recurrent", "transformer"])
def test_ensembles(model):
    """Two equal models act as one, and another one changes the scores; sizes and tokenizers must be equal."""
    own = captioner(model)
    twins = own.ensemble_with([own])
    found, both = own.candidates(IMAGES), twins.candidates(IMAGES)
    assert [best[0].tokens for best in both] == [best[0].tokens for best in found]
    np.testing.assert_allclose([best[0].score for best in both], [best[0].score for best in found], rtol=1e-4)
    other = dataclasses.replace(own, params=drawn(own.net.shapes, 0.3))
    scores = [best[0].score for best in own.ensemble_with([other]).candidates(IMAGES)]
    assert np.abs(np.subtract(scores, [best[0].score for best in found])).max() > 1e-3
    image = dataclasses.replace(model.image, image_size=(16, 16))
    net = TASK.network(CaptioningConfig(model=dataclasses.replace(model, image=image)), own.tokenizer.vocab_size).net
    with pytest.raises(ConfigError, match=r"must see images \(8, 8, 3\), got \(16, 16, 3\)"):
        own.ensemble_with([dataclasses.replace(own, net=net)])
    with pytest.raises(ConfigError, match="must have one tokenizer; that of model 2 differs"):
        own.ensemble_with([dataclasses.replace(own, tokenizer=CharacterTokenizer("abc"))])
    covered = dataclasses.replace(own, decode=dataclasses.replace(own.decode, search=Beam(coverage_penalty=0.1)))
    with pytest.raises(ConfigError, match="coverage_penalty needs the attention of a single model"):
        covered.ensemble_with([own])


@pytest.mark.full
def test_an_ensemble_has_the_shortest_limit_of_its_models():
    """In any order: one model has learned positions of 4 tokens, the other has no limit."""
    limited = captioner(dataclasses.replace(TRANSFORMER, max_positions=4))
    for own, other in ((captioner(RECURRENT), limited), (limited, captioner(RECURRENT))):
        long = dataclasses.replace(own, decode=DecodeConfig(search=Beam(beam_size=2), max_length=9, min_length=8))
        (best,) = long.ensemble_with([other]).candidates(IMAGES[:1])
        assert len(best[0].tokens) == 3  # and the end


@pytest.fixture
def shapes(monkeypatch):
    """The shapes of the captions whose attention is computed."""
    found = []

    def weights(net, params, images, tokens):
        found.append(tokens.shape)
        return np.zeros((len(images), 1, 1, tokens.shape[1], 16), np.float32)

    monkeypatch.setattr(predictor, "_captured_weights", weights)
    return found


@pytest.mark.parametrize("model", [RECURRENT, TRANSFORMER], ids=["recurrent", "transformer"])
def test_captions_of_many_lengths_share_a_program(model, shapes):
    own = captioner(model)
    for number in (1, 7, 15, 16, 23):
        own.attention(IMAGES[:1], ["a" * number])
    assert {*shapes} == {(1, 16), (1, 32 if model is RECURRENT else 24)}  # the Transformer has 24 positions


@pytest.mark.full
def test_only_a_transformer_has_a_cache_dtype():
    half = lambda model: dataclasses.replace(
        captioner(model), decode=DecodeConfig(search=Beam(beam_size=2), max_length=6, cache_dtype="bfloat16")
    )
    assert len(half(TRANSFORMER).candidates(IMAGES)) == 3
    with pytest.raises(ConfigError, match="cache_dtype needs a Transformer: a recurrent decoder keeps no keys"):
        half(RECURRENT).candidates(IMAGES)


def test_a_long_caption_leaves_its_neighbors_alone(shapes):
    """They would be padded to its length, and need as much memory as it does."""
    own = dataclasses.replace(captioner(RECURRENT), decode=DecodeConfig())
    found = own.attention(IMAGES, ["a dark", "a" * 300, "light"])
    assert [len(pieces.target) for pieces in found] == [7, 301, 6]
    assert shapes == [(2, 16), (1, 304)]
