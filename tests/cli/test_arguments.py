"""Settings given as arguments: accepted forms, and messages about mistakes."""

import dataclasses
import shlex

import pytest

from jaxformer.cli import arguments
from jaxformer.errors import ConfigError
from jaxformer.models import Seq2SeqConfig, choices
from jaxformer.tasks import registry
from jaxformer.tasks.language_model import LanguageModelingConfig
from jaxformer.tasks.translation import TranslationConfig
from jaxformer.training import CosineDecay, MuonConfig


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--seed", "2.5"], "seed: got '2.5', expected int"),
        (["--model.final-norm=1"], "model.final_norm: got '1', expected bool"),
        (
            ["--model", "recurrent", "--model.d_model", "5"],
            "model: d_hidden must be even, half for each direction of the encoder, got 5",
        ),
        (["--modle.d_model=3"], "unknown setting --modle.d_model; did you mean 'model.d_model'?"),
        (["--data.batch_size", "8"], "unknown setting --data.batch_size; did you mean 'data.tokens_per_batch'?"),
        (
            ["--train.dropout_rate", "0"],
            "unknown setting --train.dropout_rate; did you mean 'model.feed_forward.dropout' or 'model.dropout'?",
        ),
        (["--train.report-to=x"], "unknown setting --train.report-to; did you mean 'train.log_to'?"),
        (["--train.learning-rate"], "unknown setting --train.learning-rate; did you mean 'optimizer.learning_rate'?"),
        (
            ["--optimizer.schedule.decay_steps", "7"],
            "unknown setting --optimizer.schedule.decay_steps: there is 'optimizer.schedule.decay_steps' with "
            "--optimizer.schedule cosine or linear",
        ),
    ],
)
def test_bad_settings_give_a_short_message(given, message):
    """`tests/wrong_commands.txt` has more of them."""
    with pytest.raises(ConfigError) as caught:
        arguments.override(TranslationConfig(), given)
    assert str(caught.value) == message


@pytest.mark.parametrize("name", ["max_length", "max_new_tokens"])
def test_the_length_of_a_generated_text_is_not_that_of_the_data(name):
    with pytest.raises(ConfigError, match=r"did you mean 'decode\.max_tokens'\?$"):
        arguments.override(LanguageModelingConfig(), [f"--decode.{name}", "40"])


@pytest.mark.parametrize("kind", [["--model", "recurrent"], ["--model=recurrent"]])
def test_the_kind_of_the_model_comes_first(kind):
    words = ["--model.attention", "general", *kind, "--model.attention.input_feeding"]
    config = arguments.override(TranslationConfig(), words)
    expected = {"d_model": 512, "num_encoder_layers": 6, "num_decoder_layers": 6}
    assert config.model == Seq2SeqConfig(attention=choices.General(input_feeding=True), **expected)
    assert arguments.override(config, kind) == config


def test_the_last_kind_counts():
    """As with every other setting that is given twice."""
    twice = ["--model", "recurrent", "--model=transformer"]
    assert arguments.override(TranslationConfig(), twice) == TranslationConfig()
    assert arguments.override(TranslationConfig(), twice[2:] + twice[:2]).model.kind == "recurrent"


def test_a_setting_belongs_to_one_choice():
    """It is known only beside that choice, in any order, and a message says which one it belongs to."""
    given = ["--optimizer.momentum", "0.9", "--optimizer", "muon", "--optimizer.schedule.decay_steps", "7"]
    config = arguments.override(TranslationConfig(), [*given, "--optimizer.schedule", "cosine"])
    assert config.optimizer == MuonConfig(momentum=0.9, schedule=CosineDecay(7))
    back = ["--optimizer", "adam", "--optimizer.schedule", "inverse_sqrt"]
    assert arguments.override(config, back) == TranslationConfig()


def test_settings_reach_their_fields():
    given = ["--model.d_model=64", "--model.num-heads", "4", "--data.columns", "1", "0", "--train.no-tensorboard"]
    config = arguments.override(TranslationConfig(), given)
    assert (config.model.d_model, config.model.num_heads, config.data.columns) == (64, 4, (1, 0))
    assert not config.train.tensorboard
    assert config.optimizer == TranslationConfig().optimizer


@pytest.mark.parametrize("given", [["--model.remat", "True"], ["--model.remat=true"], ["--model.remat"]])
def test_booleans_are_given_as_a_word_or_a_flag(given):
    assert arguments.override(TranslationConfig(), [*given, "--train.tensorboard=False"]).model.remat
    assert not arguments.override(TranslationConfig(), ["--seed=1", "--train.tensorboard", "False"]).train.tensorboard


def test_true_false_and_none_may_be_in_lower_case():
    """Those of a setting that may be None were refused, although other Booleans may be."""
    given = ["--model.final_norm", "true", "--model.attention_output_bias=false", "--model.head_dim", "none"]
    model = arguments.override(TranslationConfig(), [*given, "--model.embedding-scale=none"]).model
    assert (model.final_norm, model.attention_output_bias, model.head_dim) == (True, False, None)
    assert arguments.override(TranslationConfig(), ["--model.final_norm", "--seed", "2"]).model.final_norm


def test_settings_are_shown_by_section_with_their_choices():
    lines = arguments.settings_help(TranslationConfig()).splitlines()
    assert lines[0] == "  --name translation"
    start = lines.index("model: The network; vocabulary sizes of 0 are replaced by the tokenizer's.")
    model = lines[start : lines.index("", start)]
    assert all(line.startswith(("  --model.", "        ")) for line in model[1:])
    place = model.index("  --model.norm_position post")
    assert model[place + 1] == "        one of post, pre, sandwich, deep"
    assert model[place + 2].startswith("        The position of the norms")
    assert lines[lines.index("  --model transformer") + 1] == "        one of transformer, recurrent"
    assert max(map(len, lines)) <= 120


@pytest.mark.parametrize(
    "config",
    [
        registry.resolve("language_model"),
        pytest.param(TranslationConfig(), marks=pytest.mark.full),
        pytest.param(TranslationConfig(model=Seq2SeqConfig()), marks=pytest.mark.full),
    ],
)
def test_settings_can_be_given_as_they_are_printed(config):
    """The settings of a section in one call, because making a parser takes long; and all sections."""
    printed = arguments.settings_help(config).split("\n\n")
    sections = [[line for line in section.splitlines() if line.startswith("  --")] for section in printed]
    assert len(sections) > 4
    assert sum(map(len, sections)) == len(arguments.settings_of(type(config), config, {}))
    sections = [[line for line in lines if ".NAME." not in line] for lines in sections]  # each needs a name and files
    for lines in sections:
        assert arguments.override(config, shlex.split(" ".join(lines))) == config
    words = shlex.split(" ".join(line for lines in sections for line in lines))
    assert arguments.override(dataclasses.replace(config, name="another", seed=3), words) == config


def test_settings_of_parts_that_a_user_names():
    words = "--data.corpora.en-de.source a --data.corpora.en_de.weight 2 --data.corpora.x.source=b"
    words += " --data.corpora.x.weight 1"
    config = arguments.override(TranslationConfig(), words.split())
    assert {name: (part.source, part.weight) for name, part in config.data.corpora.items()} == {
        "en_de": ("a", 2.0),
        "x": ("b", 1.0),
    }
    config = arguments.override(config, ["--data.corpora.x.first-step", "9"])
    assert (config.data.corpora["x"].first_step, config.data.corpora["en_de"].first_step) == (9, 1)
    with pytest.raises(ConfigError, match=r"did you mean 'data\.corpora\.x\.first_step'"):
        arguments.override(config, ["--data.corpora.x.first_stop", "9"])
    shown = arguments.settings_help(config)
    assert "  --data.corpora.x.first_step 9\n" in shown
    assert "corpora.NAME" not in shown
    assert "  --data.corpora.NAME.first_step 1\n" in arguments.settings_help(TranslationConfig())
