"""The language modeling task: its contract, generation, and what happens without the causal mask."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer import demo, models
from jaxformer.config import changed
from jaxformer.data.pipeline import prepare_tokenizer
from jaxformer.data.tokenizer import CharacterTokenizer
from jaxformer.errors import ConfigError, DataError
from jaxformer.modules.pure import pure
from jaxformer.tasks.language_model import TASK, DataConfig, DecodeConfig, LanguageModelingConfig, TextGenerator
from jaxformer.tasks.language_model import task as language_model
from jaxformer.training.config import TrainConfig
from jaxformer.training.optimizers import OptimizerConfig
from tests.contracts.task import TaskContract

TEXT = "\n".join(pair.english for pair in demo.generate(120))


def tiny(folder, **model):
    path = folder / "text.txt"
    path.write_text(TEXT)
    return LanguageModelingConfig(
        mesh="data=8",
        model=models.LanguageModelConfig(
            d_model=16, num_heads=4, d_ff=32, num_layers=1, max_positions=16, dropout=0.1, **model
        ),
        data=DataConfig(text=str(path), length=16, batch_size=16, cache=str(folder / "cache")),
        optimizer=OptimizerConfig(learning_rate=1e-2, warmup_steps=2),
        train=TrainConfig(steps=6, validate_every=3, checkpoint_every=2, tensorboard=False),
        decode=DecodeConfig(max_tokens=20),
    )


@pytest.mark.full
class TestContract(TaskContract):
    task = "language_model"
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


@pytest.fixture(scope="module")
def generator():
    tokenizer = CharacterTokenizer.train([TEXT])
    config = models.LanguageModelConfig(
        vocab_size=tokenizer.vocab_size, d_model=16, num_heads=2, d_ff=32, num_layers=1, max_positions=12
    )
    net = pure(models.LanguageModel, config)
    return TextGenerator(net, net.init(jax.random.key(0)), tokenizer, DecodeConfig(max_tokens=30), window=12)


def test_prompts_are_continued(generator):
    """Beyond the window too: by as many tokens as were asked for, and none of them special."""
    told = []
    texts = generator.generate(["The old man", "", "S"], progress=told.append)
    assert sum(told) == 90
    assert [len(text) for text in texts] == [len("The old man") + 30, 30, 31]
    assert texts[0].startswith("The old man")
    assert texts[2].startswith("S")


def test_a_window_of_one_token(generator):
    """A model that sees one token continues a text, too: each token follows from the one before."""
    one = dataclasses.replace(generator, window=1, decode=DecodeConfig(max_tokens=5, temperature=0))
    text = one.generate(["She"])[0]
    assert len(text) == 8
    last = generator.tokenizer.encode([text])[0][-2:]
    logits = np.array(generator.net.apply(generator.params, jnp.array([last[:1]], jnp.int32))[0, -1])
    logits[sorted(generator.tokenizer.special.ids)] = -np.inf
    assert int(logits[: generator.tokenizer.vocab_size].argmax()) == last[1]


def test_a_text_does_not_depend_on_the_others(generator):
    """Draws are a function of the seed and the prompt's number, so a prompt alone gives what it gives as the first."""
    together = generator.generate(["The old man", "She sings."])
    assert generator.generate(["The old man"])[0] == together[0]
    other = dataclasses.replace(generator, decode=DecodeConfig(max_tokens=30, seed=1))
    assert other.generate(["The old man"])[0] != together[0]


def test_greedy_takes_the_most_probable_character(generator):
    """With a temperature of 0, against the whole forward pass over what is there, character by character."""
    greedy = dataclasses.replace(generator, decode=DecodeConfig(max_tokens=6, temperature=0))
    ids = generator.tokenizer.encode(["She"])[0].tolist()
    special = sorted(generator.tokenizer.special.ids)
    for _ in range(6):
        logits = np.array(generator.net.apply(generator.params, jnp.array([ids], jnp.int32))[0, -1])
        logits[special] = -np.inf
        ids.append(int(logits.argmax()))
    assert greedy.generate(["She"]) == [generator.tokenizer.decode(ids)]


def test_unknown_characters_are_named(generator):
    with pytest.raises(DataError, match="the model's vocabulary has no 'é', '雨'"):
        generator.generate(["é雨The"])


def test_one_text_is_not_a_list_of_prompts(generator):
    """Each of its characters would be a prompt."""
    with pytest.raises(TypeError, match=r"write \[text\]"):
        generator.generate("The")


def test_the_coldest_temperature_is_greedy(generator):
    texts = [
        dataclasses.replace(generator, decode=DecodeConfig(max_tokens=6, temperature=t)).generate(["She"])
        for t in (0.0, 1e-40)
    ]
    assert texts[0] == texts[1]


def test_a_seed_that_32_bits_cannot_hold_is_refused():
    with pytest.raises(ValueError, match=r"seed must be less than 2\*\*32, got 4294967296"):
        DecodeConfig(seed=2**32)


def test_a_comma_after_the_last_file_names_no_file(tmp_path):
    config = tiny(tmp_path)
    text = config.data.text
    assert TASK.read(changed(config, {"data": {"text": f"{text}, "}})) == TASK.read(config)
    with pytest.raises(DataError, match="no text"):
        TASK.read(changed(config, {"data": {"text": ","}}))


def test_a_run_keeps_one_tokenizer(tmp_path):
    """The one that came with `init_from`, of whichever kind it is; it is the one that is loaded later."""
    config, run = tiny(tmp_path), tmp_path / "run"
    corpus = TASK.read(config)
    subwords = prepare_tokenizer(corpus.train, tmp_path / "cache", kind="bpe", vocab_size=400)
    subwords.save(run / "tokenizer.model")
    data = TASK.prepare(config, corpus, run)
    assert data.vocabulary.fingerprint == subwords.fingerprint == TASK.vocabulary(run).fingerprint
    assert not (run / "tokenizer.json").exists()


def test_t7_without_the_causal_mask(generator):
    """A logit sees the token that it is to predict, but only where the mask is missing."""
    tokens = jnp.array(generator.tokenizer.encode(["The old man"]), jnp.int32)
    changed_last = tokens.at[0, -1].set(tokens[0, 0])
    for causal in (True, False):
        config = dataclasses.replace(generator.net.config, causal=causal)
        net = pure(models.LanguageModel, config)
        before, after = (np.asarray(net.apply(generator.params, x))[0, :-1] for x in (tokens, changed_last))
        assert np.array_equal(before, after) is causal


def test_a_plan_needs_the_size_of_the_vocabulary():
    config = LanguageModelingConfig()
    with pytest.raises(ConfigError, match=r"give --model\.vocab_size N"):
        TASK.planned_vocab_size(config)
    assert TASK.planned_vocab_size(changed(config, {"model": {"vocab_size": 80}})) == 80
    assert TASK.planned_vocab_size(changed(config, {"data": {"tokenizer": "bpe", "vocab_size": 500}})) == 500


@pytest.mark.parametrize("settings", [{"temperature": float("inf")}, {"temperature": -1.0}, {"max_tokens": 0}])
def test_decode_settings_without_a_meaning(settings):
    with pytest.raises(ValueError, match="must be"):
        DecodeConfig(**settings)
