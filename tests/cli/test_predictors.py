"""Settings of the search among other arguments, and commands that do not apply to a run."""

import pytest

from jaxformer.cli.caption import Caption
from jaxformer.cli.evaluate import Evaluate
from jaxformer.cli.generate import Generate
from jaxformer.cli.main import main
from jaxformer.cli.predictors import configured
from jaxformer.cli.score import Score
from jaxformer.cli.translate import Translate
from jaxformer.errors import ConfigError
from jaxformer.tasks import rundir
from jaxformer.tasks.captioning import CaptioningConfig
from jaxformer.tasks.language_model import DecodeConfig as TextDecodeConfig
from jaxformer.tasks.language_model import LanguageModelingConfig
from jaxformer.tasks.translation import DecodeConfig, TranslationConfig


@pytest.mark.parametrize(
    ("config", "command", "message"),
    [
        (LanguageModelingConfig(), ["translate", "run", "a"], "commands are evaluate, generate, score"),
        (LanguageModelingConfig(), ["inspect", "run", "--source", "a"], "commands are evaluate, generate, score"),
        (TranslationConfig(), ["generate", "run", "a"], "commands are evaluate, translate, inspect, score"),
        (TranslationConfig(), ["translate", "run", "--decode.beam_siez", "3", "a"], "did you mean 'decode.beam_size'?"),
        (TranslationConfig(), ["translate", "run", "--decode.beam_size", "0", "a"], "beam_size must be at least 1"),
    ],
)
def test_a_run_of_another_task_is_refused(tmp_path, monkeypatch, capsys, config, command, message):
    """With one line, before anything is loaded."""
    monkeypatch.chdir(tmp_path)
    task = "translation" if isinstance(config, TranslationConfig) else "language_model"
    rundir.claim(tmp_path / "run", task, config, ())
    assert main(command) == 2
    error = capsys.readouterr().err
    assert len(error.splitlines()) == 1
    assert message in error


def given(run, config, command, settings, *ensemble):
    """Returns the search of a run with command-line settings."""
    rundir.claim(run, config.task, config, ())
    kinds = {"translate": Translate, "evaluate": Evaluate, "caption": Caption, "score": Score, "generate": Generate}
    return configured(kinds[command](run, ensemble=ensemble), settings.split()).decode


@pytest.mark.parametrize(
    ("config", "command", "settings", "message"),
    [
        (
            TranslationConfig(),
            "translate",
            "--decode.sample True --decode.beam_size 8",
            "beam_size has no effect: it is for a beam",
        ),
        (
            TranslationConfig(),
            "translate",
            "--decode.mbr 8 --decode.length-penalty=.6",
            "not for sampling by decode.mbr",
        ),
        (
            TranslationConfig(),
            "evaluate",
            "--decode.sample --decode.normalization gnmt",
            "decode.normalization has no effect: it is for a beam",
        ),
        (CaptioningConfig(), "caption", "--decode.sample True --decode.stopping limit", "sampling by decode.sample"),
        (TranslationConfig(), "translate", "--decode.seed 1", "seed has no effect: it is for sampling"),
        (TranslationConfig(), "translate", "--decode.mbr 2 --decode.candidates beam --decode.seed 1", "decode.seed"),
        (TranslationConfig(), "translate", "--decode.utility bleu", "it needs decode.mbr"),
        (TranslationConfig(), "translate", "--decode.beam_size 1 --decode.stopping limit", "1 is greedy search"),
        (TranslationConfig(), "translate", "--decode.sample --decode.renormalize", "sampling always renormalizes"),
        (LanguageModelingConfig(), "generate", "--decode.renormalize True", "sampling always renormalizes"),
        (TranslationConfig(), "evaluate", "--decode.average log", "decode.average has no effect: it needs --ensemble"),
        (
            TranslationConfig(),
            "translate",
            "--decode.length_penalty 0 --decode.normalization words",
            "decode.length_penalty is 0",
        ),
        (TranslationConfig(), "translate", "--decode.validation-sentences 8", "it is for training"),
        (CaptioningConfig(), "caption", "--decode.validation_images 8", "it is for training"),
        (
            TranslationConfig(),
            "score",
            "--decode.beam_size 8",
            "decode.beam_size has no effect: score generates no text",
        ),
        (LanguageModelingConfig(), "score", "--decode.temperature 1", "decode.temperature has no effect: score"),
        (
            LanguageModelingConfig(),
            "evaluate",
            "--decode.max_tokens 8",
            "decode.max_tokens has no effect: evaluate generates no text",
        ),
        (LanguageModelingConfig(), "generate", "--decode.temperature 0 --decode.seed 1", "decode.temperature is 0"),
        (LanguageModelingConfig(), "generate", "--decode.utility bleu", "it needs decode.mbr"),
    ],
)
def test_a_setting_that_the_command_would_ignore_is_refused(tmp_path, config, command, settings, message):
    with pytest.raises(ConfigError, match=message):
        given(tmp_path / "run", config, command, settings)


@pytest.mark.parametrize(
    ("decode", "command", "settings"),
    [
        (DecodeConfig(length_penalty=0.6, beam_size=8, stopping="limit"), "translate", "--decode.sample True"),
        (DecodeConfig(sample=True, seed=3), "translate", "--decode.sample False"),
        (DecodeConfig(utility="bleu", seed=3, average="log"), "translate", "--decode.beam_size 2"),
        (DecodeConfig(), "translate", "--decode.sample --decode.beam_size 4 --decode.stopping first"),
        (DecodeConfig(), "translate", "--decode.mbr 4 --decode.candidates beam --decode.length_penalty .5"),
        (DecodeConfig(beam_size=8), "score", "--decode.batch_size 8"),
        (TextDecodeConfig(seed=3), "generate", "--decode.temperature 0"),
        (TextDecodeConfig(seed=3), "generate", "--decode.mbr 4 --decode.utility bleu --decode.seed 4"),
    ],
)
def test_saved_settings_may_be_ignored(tmp_path, decode, command, settings):
    """So may a setting whose last value is the default, which cancels the first."""
    task = LanguageModelingConfig if isinstance(decode, TextDecodeConfig) else TranslationConfig
    assert given(tmp_path / "run", task(decode=decode), command, settings) != decode or "first" in settings


@pytest.mark.parametrize(
    ("command", "said"), [("translate", "all devices share the sentences"), ("generate", "each device computes all")]
)
def test_the_help_explains_the_devices_of_a_mesh(command, said, capsys):
    with pytest.raises(SystemExit, match="0"):
        main([command, "--help"])
    assert said in " ".join(capsys.readouterr().out.split())


def test_an_ensemble_uses_decode_average(tmp_path):
    assert given(tmp_path / "run", TranslationConfig(), "score", "--decode.average log", tmp_path).average == "log"
