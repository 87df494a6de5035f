"""The masked language modeling task: its contract, the masked tokens, and learning."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tokenizers

from jaxformer import demo, models
from jaxformer.config import changed
from jaxformer.errors import DataError
from jaxformer.functional import Tokens
from jaxformer.models import choices
from jaxformer.sharding import Placement, mesh
from jaxformer.tasks.base import Trained
from jaxformer.tasks.masked_language_model import TASK, DataConfig, MaskedLanguageModelingConfig, MaskedPredictor
from jaxformer.tasks.masked_language_model import task as masked_language_model
from jaxformer.tokenizers.characters import CharacterTokenizer
from jaxformer.tokenizers.pretrained import PretrainedTokenizer
from jaxformer.tokenizers.special_tokens import SpecialTokens
from jaxformer.tokenizers.subwords import SubwordTokenizer
from jaxformer.training.config import AdamConfig, TrainConfig
from tests.contracts.task import TaskContract
from tests.modules.small import drawn, quick

TEXT = "\n\n".join(pair.english for pair in demo.generate(120))


def tiny(folder, **model):
    path = folder / "text.txt"
    path.write_text(TEXT)
    return MaskedLanguageModelingConfig(
        mesh="data=8",
        model=models.EncoderConfig(
            d_model=12,
            num_heads=4,
            d_ff=20,
            num_layers=1,
            positions=choices.Learned(),
            max_positions=64,
            **model,
        ),
        data=DataConfig(text=str(path), tokenizer="characters", length=64, batch_size=16, cache=str(folder / "cache")),
        optimizer=AdamConfig(learning_rate=1e-2, warmup_steps=2),
        train=TrainConfig(steps=6, validate_every=3, checkpoint_every=2, tensorboard=False),
    )


@pytest.mark.full
class TestContract(TaskContract):
    task = "masked_language_model"
    attentions = ("encoder.self",)
    refused = (
        ({"data": {"text": ""}}, "no text: give --data.text"),
        ({"data": {"text": "nowhere.txt"}}, "nowhere.txt"),
        ({"data": {"length": 65}}, "data.length is 65, but model.max_positions is 64"),
        ({"data": {"held_out": 1.5}}, "held_out must be"),
        (
            {"data": {"text": "", "corpora": {"a": {"text": "a"}}}},
            "corpora has no effect here: name all files",
        ),
        ({"model": {"vocab_size": 7}}, "model.vocab_size is 7, but the tokenizer has"),
        ({"train": {"metric": "bleu"}}, "bleu"),
    )

    @pytest.fixture(scope="class")
    @classmethod
    def config(cls, tmp_path_factory):
        return tiny(tmp_path_factory.mktemp("text"))

    def change_training_data(self, config, patch):
        whole = lambda texts, number: [[*range(len(texts))]] * 2
        patch.setattr(masked_language_model, "split_rows", whole)

    def test_masked_tokens(self, config, run):
        """The mask token is not in the tokenizer; class tokens, ends and padding are never masked."""
        data = TASK.prepare(config, TASK.read(config), run)
        network = TASK.network(config, data.vocabulary.vocab_size)
        batch = jax.tree.map(jnp.asarray, data.train.batch(0))
        choose = masked_language_model.Masking(data.vocabulary.vocab_size, config.data.mask_rate)
        masked, *others = choose(batch, jax.random.key(0))
        seen, places, labels, where = (np.asarray(x) for x in (masked.ids, *others))
        tokens, special = np.asarray(batch.tokens.ids), sorted(data.vocabulary.special.ids)
        share = where.sum() / (~np.isin(tokens, special)).sum()
        assert 0.13 < share < 0.17
        assert not np.isin(labels[where], special).any()
        np.testing.assert_array_equal(np.take_along_axis(tokens, places, 1)[where], labels[where])
        hidden = np.zeros(tokens.shape, bool)
        np.put_along_axis(hidden, places, where, 1)
        np.testing.assert_array_equal(seen[~hidden], tokens[~hidden])
        assert data.vocabulary.vocab_size in seen
        assert network.net.config.vocab_size > data.vocabulary.vocab_size
        assert (np.asarray(choose(batch, jax.random.key(1))[1]) != places).any()

    def test_lines_are_held_out_whole(self, config):
        """No validation line is a training line, and blank lines are left out."""
        corpus = TASK.read(config)
        train, validation = (set(part.characters.split("\n")) for part in (corpus.train, corpus.validation))
        assert train | validation == set(TEXT.split("\n")) - {""}
        assert not train & validation
        assert 0.02 < len(validation) / len(train) < 0.12

    def test_most_probable_tokens(self, config, run):
        predictor = TASK.predictor(*self.loaded(config, run))
        (first, second), again = predictor.fill("The ol[MASK] m[MASK]n", top_k=3), predictor.fill("a[MASK]")
        assert [len(first), len(second), len(again[0])] == [3, 3, 5]
        assert all(a >= b for best in (first, second) for (_, a), (_, b) in itertools.pairwise(best))
        net, mask = predictor.net, predictor.tokenizer.vocab_size
        ids = [x.tolist() for x in predictor.tokenizer.encode(["The ol", " m", "n"])]
        special = predictor.tokenizer.special
        tokens = jnp.asarray([[special.bos, *ids[0], mask, *ids[1], mask, *ids[2], special.eos]])
        logits = net.apply(predictor.params, tokens)[0, :, :mask]  # without padding
        expected = jax.nn.softmax(logits[np.flatnonzero(tokens[0] == mask)])
        np.testing.assert_allclose([first[0][1], second[0][1]], expected.max(1), rtol=1e-5)
        with pytest.raises(DataError, match=r"the text has no \[MASK\]: 'The'"):
            predictor.fill("The")
        with pytest.raises(DataError, match="71 tokens, but the model has 64 positions"):
            predictor.fill("a" * 68 + "[MASK]")

    def loaded(self, config, run):
        vocabulary = TASK.vocabulary(run)
        net = TASK.network(config, vocabulary.vocab_size).net
        return config, vocabulary, Trained(net, drawn(net.shapes), Placement(mesh("")), (0,))


def test_text_of_unknown_characters_is_refused_before_training(tmp_path):
    """None of its tokens can be masked, so there is no loss."""
    config = tiny(tmp_path)
    (tmp_path / "greek.txt").write_text("αβγ\nδε\n")
    config = changed(config, {"data": {"validation": str(tmp_path / "greek.txt")}})
    with pytest.raises(DataError, match="the validation text has no token that the tokenizer knows, only 5 unknown"):
        TASK.prepare(config, TASK.read(config), tmp_path)


def test_runs_of_several_seeds_are_validated_on_the_same_rows(tmp_path):
    """The masked tokens depend on the rows."""
    config = tiny(tmp_path)
    corpus = TASK.read(config)
    first, second = (TASK.prepare(dataclasses.replace(config, seed=seed), corpus, tmp_path) for seed in (0, 1))
    same = [
        np.array_equal(a.batch(0).tokens.ids, b.batch(0).tokens.ids)
        for a, b in ((first.validation, second.validation), (first.train, second.train))
    ]
    assert same == [True, False]


@pytest.mark.full
def test_scores_are_those_of_all_logits(tmp_path):
    """The loss, the count and the correct predictions of one batch, against all logits of the masked input."""
    network = TASK.network(tiny(tmp_path), 30)
    params = network.net.init(jax.random.key(0))
    ids = jnp.asarray(np.random.default_rng(0).integers(4, 30, (3, 16)), jnp.int32)
    segments = jnp.asarray([[1] * 16, [1] * 3 + [2] * 13, [1] * 5 + [0] * 11], jnp.int32)
    positions = jnp.asarray([range(16), [*range(3), *range(13)], range(16)], jnp.int32)
    tokens = Tokens(ids, segments > 0, positions, segments)
    batch = masked_language_model.PackedBatch(tokens, SpecialTokens())
    total, count, sums = network.validation_sums(params, batch)
    total, count, correct = float(total), float(count), float(sums["correct"])
    seen, places, labels, where = masked_language_model.Masking(30, 0.15)(batch, None)
    logits = jax.nn.log_softmax(network.net.apply(params, dataclasses.replace(tokens, ids=seen.ids)))
    log_p = [
        float(logits[b, place, label])
        for b in range(3)
        for place, label, real in zip(places[b], labels[b], where[b], strict=True)
        if real
    ]
    assert count == len(log_p) == 5
    assert total == pytest.approx(-sum(log_p), rel=1e-5)
    assert 0 <= correct <= 5
    same = network.sums(params, batch, None)
    assert (float(same[0]), float(same[1])) == (pytest.approx(total, rel=1e-5), 5)
    every = TASK.network(changed(tiny(tmp_path), {"data": {"mask_rate": 1.0}}), 30)
    assert every.validation_sums(params, batch)[1] == 37


@pytest.mark.full
def test_a_mask_after_a_space_is_the_first_token_of_a_word(tmp_path):
    """The tokens are those of the text with a word in place of the mask: the space before it is not a token."""
    lines = TEXT.split("\n")
    tokenizer = SubwordTokenizer.train(lines, vocab_size=500)
    network = TASK.network(tiny(tmp_path), tokenizer.vocab_size)
    predictor = MaskedPredictor(network.net, quick(network.net.init)(jax.random.key(0)), tokenizer)
    whole_words = lambda pieces: [
        i for i, pair in enumerate(itertools.pairwise(pieces)) if all(len(x) > 2 and x[0] == "▁" for x in pair)
    ]
    whole = max((ids.tolist() for ids in tokenizer.encode(lines)), key=lambda x: len(whole_words(tokenizer.pieces(x))))
    pieces = tokenizer.pieces(whole)
    chosen = whole_words(pieces)[::2]
    assert len(chosen) > 1
    text = "".join(" [MASK]" if i in chosen else piece.replace("▁", " ") for i, piece in enumerate(pieces))
    for i in chosen:
        whole[i] = tokenizer.vocab_size
    special = tokenizer.special
    logits = quick(network.net.apply)(predictor.params, jnp.asarray([[special.bos, *whole, special.eos]]))
    expected = jax.nn.softmax(logits[0, jnp.asarray(chosen) + 1, : tokenizer.vocab_size]).max(1)
    found = predictor.fill(text, top_k=1)
    np.testing.assert_allclose([best[0][1] for best in found], expected, rtol=1e-5)


@pytest.mark.parametrize("scheme", ["first", "always"])
@pytest.mark.parametrize("lstrip", [False, True])
def test_a_pretrained_vocabulary_has_its_own_rules_for_the_spaces_at_a_mask(tmp_path, monkeypatch, scheme, lstrip):
    """A part of a text is not encoded like a text, before which the rules may put a space."""
    theirs = tokenizers.Tokenizer(tokenizers.models.BPE({"\u2581": 0, "a": 1, "b": 2, "<mask>": 3, "</s>": 4}, []))
    theirs.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace(prepend_scheme=scheme, split=False)
    theirs.add_special_tokens([tokenizers.AddedToken("<mask>", lstrip=lstrip), "</s>"])
    tokenizer = PretrainedTokenizer(theirs.to_str(), SpecialTokens(4, 4, 4, 4))
    network = TASK.network(tiny(tmp_path), tokenizer.vocab_size)
    seen = []
    no_logits = lambda network, params, tokens, masked: seen.append(tokens.ids[tokens.valid]) or np.zeros((1, 16, 8))
    monkeypatch.setattr(masked_language_model, "_logits", no_logits)
    for text in ("a [MASK] b", "[MASK]b", "a[MASK] [MASK]", " a b [MASK]"):
        assert len(MaskedPredictor(network.net, {}, tokenizer).fill(text)) == text.count("[MASK]")
        ids = theirs.encode(text.replace("[MASK]", "<mask>")).ids
        assert seen.pop()[1:-1].tolist() == [tokenizer.vocab_size if token == 3 else token for token in ids]


@pytest.mark.parametrize("top_k", [0, -1])
def test_at_least_one_token_is_asked_for(tmp_path, top_k):
    """With -1, all tokens except the least probable one came back."""
    tokenizer = CharacterTokenizer("abc")
    predictor = MaskedPredictor(TASK.network(tiny(tmp_path), tokenizer.vocab_size).net, {}, tokenizer)
    with pytest.raises(ValueError, match=f"top_k must be at least 1, got {top_k}"):
        predictor.fill("a [MASK]", top_k=top_k)
