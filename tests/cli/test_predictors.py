"""Commands that do not apply to a run."""

import pytest

from jaxformer.cli.main import main
from jaxformer.tasks import rundir
from jaxformer.tasks.language_model import LanguageModelingConfig
from jaxformer.tasks.translation import TranslationConfig


@pytest.mark.parametrize(
    ("config", "command", "message"),
    [
        (LanguageModelingConfig(), ["translate", "run", "a"], "commands are evaluate, generate, score"),
        (LanguageModelingConfig(), ["inspect", "run", "--source", "a"], "commands are evaluate, generate, score"),
        (TranslationConfig(), ["generate", "run", "a"], "commands are evaluate, translate, inspect, score"),
        (
            TranslationConfig(),
            ["translate", "run", "--decode.beam_siez", "3", "a"],
            "did you mean 'decode.search.beam_size'?",
        ),
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


@pytest.mark.parametrize(
    ("command", "said"), [("translate", "all devices share the sentences"), ("generate", "each device computes all")]
)
def test_the_help_explains_the_devices_of_a_mesh(command, said, capsys):
    with pytest.raises(SystemExit, match="0"):
        main([command, "--help"])
    assert said in " ".join(capsys.readouterr().out.split())
