"""The language modeling task: its contract, generation, and what happens without the causal mask."""

import dataclasses
import math
import types

import jax
import jax.numpy as jnp
import pytest

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
from jaxformer.tokenizers.characters import CharacterTokenizer
from tests.contracts.task import TaskContract
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
