"""The language modeling task: its contract, generation, and what happens without the causal mask."""

import dataclasses
import math
import types

import jax
import jax.numpy as jnp
import pytest

import jaxformer
from jaxformer import models
from jaxformer.config import changed
from jaxformer.data.pipeline import prepare_tokenizer
from jaxformer.data.text import Text
from jaxformer.errors import ConfigError, DataError
from jaxformer.modules.pure import pure
from jaxformer.tasks import registry
from jaxformer.tasks.config import SearchConfig
from jaxformer.tasks.language_model import (
    TASK,
    Beam,
    DecodeConfig,
    Greedy,
    LanguageModelingConfig,
    MinimumRisk,
    Sample,
    TextGenerator,
)
from jaxformer.tasks.language_model import task as language_model
from jaxformer.tasks.language_model.config import DataConfig, TextConfig
from jaxformer.tokenizers.characters import CharacterTokenizer
from jaxformer.training.logging import read_log
from tests.contracts.task import TaskContract, quiet
from tests.modules.small import drawn, quick
from tests.tasks.language_model.small import tiny


class TestContract(TaskContract):
    task = "language_model"
    attentions = ("decoder.self",)
    refused = (
        ({"data": {"text": ""}}, "no text: give --data.text"),
        ({"data": {"text": "nowhere.txt"}}, "nowhere.txt"),
        ({"data": {"length": 17}}, "data.length is 17, but model.max_positions is 16"),
        ({"data": {"held_out": 1.5}}, "held_out must be"),
        ({"model": {"vocab_size": 7}}, "model.vocab_size is 7, but the tokenizer has"),
        ({"train": {"metric": "bleu"}}, "bleu"),
        ({"mesh": "data=3"}, "3 devices, but there are 8"),
    )

    @pytest.fixture(scope="class")
    @classmethod
    def config(cls, tmp_path_factory):
        return tiny(tmp_path_factory.mktemp("text"))

    def change_training_data(self, config, patch):
        patch.setattr(language_model, "split_text", lambda text, held_out: (text, text))


def test_a_comma_after_the_last_file_names_no_file(tmp_path):
    config = tiny(tmp_path)
    text = config.data.text
    assert TASK.read(changed(config, {"data": {"text": f"{text}, "}})) == TASK.read(config)
    with pytest.raises(DataError, match="no text"):
        TASK.read(changed(config, {"data": {"text": ","}}))


def test_a_run_keeps_one_tokenizer(tmp_path):
    """The one of `init_from`, of either kind; it is also the one that is loaded later."""
    config, run = tiny(tmp_path), tmp_path / "run"
    corpus = TASK.read(config)
    subwords = prepare_tokenizer(corpus.train, tmp_path / "cache", kind="bpe", vocab_size=400)
    subwords.save(run / "tokenizer.model")
    data = TASK.prepare(config, corpus, run)
    assert data.vocabulary.fingerprint == subwords.fingerprint == TASK.vocabulary(run).fingerprint
    assert not (run / "tokenizer.json").exists()


def test_unknown_characters_of_a_training_text_are_counted(tmp_path):
    """Those that the tokenizer of `init_from` lacks: a model that predicts only them has a loss near 0."""
    (tmp_path / "other.txt").write_text("абвгдежзик" * 9 + "a b ", encoding="utf-8")
    config = changed(tiny(tmp_path), {"data": {"validation": str(tmp_path / "other.txt")}})
    corpus = TASK.read(config)
    CharacterTokenizer.train([corpus.train.characters]).save(tmp_path / "run" / "tokenizer.json")
    report = lambda corpus: TASK.prepare(config, corpus, tmp_path / "run").report[0]
    other = corpus.validation
    assert report(corpus).endswith(" tokens; validation: 94 tokens, 90 of them unknown")
    assert report(dataclasses.replace(corpus, train=other, validation=corpus.train)).startswith(
        "training text: 94 characters, 94 tokens, 90 of them unknown; validation: "
    )


@pytest.mark.parametrize(
    ("search", "stops", "finder"),
    [
        (Greedy(), False, Beam(beam_size=1, length_penalty=0.0)),
        (Beam(beam_size=3, renormalize=True), True, Beam(beam_size=3, length_penalty=1.0, renormalize=True)),
        (MinimumRisk(candidates=Sample(seed=3)), False, Sample(seed=3)),
    ],
)
def test_texts_are_found_as_in_other_tasks(search, stops, finder):
    """A beam compares log-probabilities per token if texts may end."""
    decode = DecodeConfig(search=search, stop_at_end=stops, no_repeat_ngram_size=3)
    assert decode.rules == SearchConfig(search=finder, forced_end="never", no_repeat_ngram_size=3)


def test_unknown_characters_of_a_held_out_text_are_counted(tmp_path):
    """They are tokens with a loss, as in training; `score` leaves them out."""
    config = tiny(tmp_path)
    corpus = dataclasses.replace(TASK.read(config), validation=Text("abcabc?!cba"))
    tokenizer = CharacterTokenizer("abc")
    net = pure(models.LanguageModel, dataclasses.replace(config.model, vocab_size=tokenizer.vocab_size))
    predictor = TextGenerator(net, drawn(net.shapes), tokenizer, DecodeConfig(), window=16)
    said = []
    (scored,) = TASK.score(config, corpus, predictor, "validation", said.append)
    assert said[-1] == "held-out text: 11 tokens, 11 characters; 2 tokens are unknown, and are scored as such"
    assert len(scored.scores) == 3
    list(TASK.score(config, dataclasses.replace(corpus, validation=Text("abc")), predictor, "validation", said.append))
    assert said[-1] == "held-out text: 3 tokens, 3 characters"


def test_a_text_is_not_scored_by_an_ensemble():
    """The loss would be that of the first model only."""
    several = types.SimpleNamespace(others=("another",))
    with pytest.raises(ConfigError, match="scored by one language model"):
        list(TASK.score(LanguageModelingConfig(), None, several, "validation", print))


def test_the_loss_begins_near_that_of_the_uniform_distribution():
    """Logits of variance 1 cost half a nat; token vectors times sqrt(D) would make it the token just read: 2.5 nats."""
    config = dataclasses.replace(registry.resolve("language_model:tiny").model, vocab_size=72, dropout=0.0)
    net = pure(models.LanguageModel, config)
    tokens = jax.random.randint(jax.random.key(1), (4, 65), 0, 72)
    scores = quick(net.apply)(quick(net.init)(jax.random.key(0)), tokens[:, :-1])
    log_probs = jnp.take_along_axis(jax.nn.log_softmax(scores), tokens[:, 1:, None], -1)
    assert -float(log_probs.mean()) == pytest.approx(math.log(72) + 0.5, abs=0.2)


@pytest.fixture(scope="module")
def several(tmp_path_factory):
    folder = tmp_path_factory.mktemp("texts")
    (folder / "a").write_text("abcdefgh\n" * 300)
    (folder / "b").write_text("stuvwxyz\n" * 100)
    (folder / "c").write_text("short\n")
    corpora = {"a": {"text": "a", "weight": 1.0}, "b": {"text": "b", "weight": 3.0}}
    return changed(tiny(folder), {"data": {"text": "", "directory": folder, "corpora": corpora}})


def test_windows_are_of_one_text_each(several, tmp_path):
    data = TASK.prepare(several, TASK.read(several), tmp_path)
    for step in range(4):
        batch, of_row = data.train.batch(step), data.train.corpora(step)
        texts = ["".join(data.vocabulary.pieces(row)) for row in batch.tokens.ids[:, 1:]]
        assert [("w" in text, "c" in text) for text in texts] == [(x == 1, x == 0) for x in of_row.tolist()]
        assert 10 <= of_row.sum() <= 13
    assert [*data.validation.parts] == ["a", "b"]


@pytest.mark.full
def test_a_run_of_several_texts(several, tmp_path):
    """Its log and its scores are by text."""
    jaxformer.train(several, tmp_path / "run", console=quiet())
    entries = read_log(tmp_path / "run" / "log.jsonl")
    steps = [entry for entry in entries if "loss" in entry]
    assert all(entry["tokens"] == entry["tokens/a"] + entry["tokens/b"] for entry in steps)
    *_, validated = (entry for entry in entries if "validation_loss" in entry)
    mean = (validated["validation_loss/a"] + validated["validation_loss/b"]) / 2
    assert validated["validation_loss"] == pytest.approx(mean)
    assert [*jaxformer.evaluate(tmp_path / "run", say=str)] == ["a", "b", "mean"]
    other = {"train": {"steps": several.train.steps + 2}, "data": {"corpora": {"b": {"weight": 1.0}}}}
    with pytest.raises(ConfigError, match="weights of the corpora at step 1 would have been others"):
        jaxformer.train(changed(several, other), tmp_path / "run", console=quiet())
    later = other | {"data": {"corpora": {"b": {"reweighted": f"{several.train.steps + 1}=0"}}}}
    logs = []
    for out in ("run", "whole"):  # resumed, and never stopped
        jaxformer.train(changed(several, later), tmp_path / out, console=quiet())
        entries = [entry for entry in read_log(tmp_path / out / "log.jsonl") if "loss" in entry]
        logs.append([(entry["loss"], entry["tokens/a"], entry["tokens/b"]) for entry in entries])
    assert logs[0] == logs[1]
    assert [b > 0 for *_, b in logs[0]] == [True] * several.train.steps + [False] * 2


def test_the_same_text_in_another_file_is_refused(several, tmp_path):
    corpora = {"c": {"text": "./a", "weight": 1.0}}
    with pytest.raises(DataError, match=r"data\.corpora\.a and data\.corpora\.c hold the same text"):
        TASK.read(changed(several, {"data": {"corpora": corpora}}))


def test_a_text_that_is_shorter_than_a_window_is_named(several, tmp_path):
    corpora = {"c": {"text": "c", "weight": 1.0, "validation": "a"}}
    config = changed(several, {"data": {"corpora": corpora}})
    with pytest.raises(DataError, match=r"data\.corpora\.c: the text has 6 tokens, fewer than a window"):
        TASK.prepare(config, TASK.read(config), tmp_path)


A = TextConfig(text="a")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"temperature": 2.0}, "temperature 2.0 has no effect: corpora names none"),
        ({"corpora": {"a": A}, "text": "b"}, "text 'b' has no effect with corpora"),
        ({"corpora": {"a": TextConfig()}}, "a names no file"),
        ({"corpora": {"a": A, "b": TextConfig(text="b", weight=1.0)}}, "b has a weight and a has none"),
    ],
)
def test_texts_without_an_effect_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        DataConfig(**settings)
