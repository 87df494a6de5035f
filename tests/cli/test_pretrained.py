"""``convert`` and ``export``: their arguments, and the printed lines."""

import pathlib

import jax
import pytest

import jaxformer
from jaxformer import interop, models, pure
from jaxformer.cli import main
from jaxformer.models import families
from jaxformer.tasks import pretrained
from jaxformer.tasks.language_model import LanguageModelingConfig
from jaxformer.tasks.masked_language_model import MaskedLanguageModelingConfig
from tests.tokenizers import pretrained as tokenizers


@pytest.mark.parametrize(
    ("config", "out", "line"),
    [
        (LanguageModelingConfig(), "my run", "my run is a run of language_model now; try: jaxformer generate 'my run'"),
        (MaskedLanguageModelingConfig(), "run", "run is a run of masked_language_model now; try: jaxformer fill run"),
    ],
)
def test_the_arguments_of_the_conversion(capsys, monkeypatch, config, out, line):
    """The printed command can be pasted."""
    asked = []
    monkeypatch.setattr(pretrained, "convert", lambda *given, length, say: asked.append((*given, length)) or config)
    assert main.main(["convert", "folder", "--out", out, "--length", "7"]) == 0
    assert capsys.readouterr().out == f"{line} TEXT\n"
    assert asked == [(pathlib.Path("folder"), pathlib.Path(out), 7)]


def test_the_arguments_of_the_export(capsys, monkeypatch):
    asked = []

    def export(*given, say, **options):
        asked.append((*given, options))
        say("no counterpart")
        return "marian"

    monkeypatch.setattr(pretrained, "export", export)
    assert main.main(["export", "run", "--out", "folder", "--checkpoint", "average", "--family", "marian"]) == 0
    printed = capsys.readouterr()
    assert printed.out == "folder is now a Hugging Face folder of model_type marian\n"
    assert "no counterpart" in printed.err
    options = {"checkpoint": "average", "family": "marian", "mesh": ""}
    assert asked == [(pathlib.Path("run"), pathlib.Path("folder"), options)]


@pytest.mark.parametrize(
    "value", [float("nan"), *(pytest.param(x, marks=pytest.mark.full) for x in (0.0, float("-inf")))]
)
def test_weights_that_are_not_finite_are_reported(caplog, tmp_path, value):
    """What such a model computes is useless, and only its texts would show it."""
    config = families.gpt2(325, d_model=4, num_heads=1, d_ff=4, num_layers=1, max_positions=8)
    net = pure(models.LanguageModel, config)
    params = jax.tree.map(lambda x: jax.numpy.zeros(x.shape), net.shapes)
    table = params["decoder"]["embeddings"]["tokens"]["table"]
    params["decoder"]["embeddings"]["tokens"]["table"] = table.at[3, 1].set(value)
    interop.save_pretrained(tmp_path / "in", net, params, family="gpt2")
    tokenizers.write(tmp_path / "in", tokenizers.byte_level(), {"eos_token": tokenizers.END})
    assert main.main(["convert", str(tmp_path / "in"), "--out", str(tmp_path / "run")]) == 0
    jaxformer.load(tmp_path / "run")  # as for `jaxformer generate`
    said = [record.getMessage() for record in caplog.records if "NaN" in record.getMessage()]
    expected = [
        f"{tmp_path / 'in'} has weights of NaN or infinity, whose results mean nothing: transformer.wte.weight",
        f"{tmp_path / 'run'} has parameters of NaN or infinity, whose results mean nothing: "
        "decoder/embeddings/tokens/table",
    ]
    assert said == (expected if value else [])
