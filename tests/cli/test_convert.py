"""``jaxformer convert``: the arguments of the conversion, and the printed lines."""

import pathlib

import jax
import pytest

import jaxformer
from jaxformer import interop, models, pure
from jaxformer.cli import main
from jaxformer.errors import DataError
from jaxformer.models import families
from jaxformer.tasks import pretrained
from jaxformer.tasks.language_model import LanguageModelingConfig
from jaxformer.tasks.masked_language_model import MaskedLanguageModelingConfig
from tests.tokenizers import pretrained as tokenizers


@pytest.mark.parametrize(
    ("config", "line"),
    [
        (LanguageModelingConfig(), "run is a run of language_model now; try: jaxformer generate run TEXT"),
        (MaskedLanguageModelingConfig(), "run is a run of masked_language_model now; try: jaxformer fill run TEXT"),
    ],
)
def test_the_arguments_of_the_conversion(capsys, monkeypatch, config, line):
    asked = []
    monkeypatch.setattr(pretrained, "convert", lambda *given, length, say: asked.append((*given, length)) or config)
    assert main.main(["convert", "folder", "--out", "run", "--length", "7"]) == 0
    assert capsys.readouterr().out == f"{line}\n"
    assert asked == [(pathlib.Path("folder"), pathlib.Path("run"), 7)]


def test_the_printed_command_can_be_pasted(capsys, monkeypatch):
    monkeypatch.setattr(pretrained, "convert", lambda *given, length, say: LanguageModelingConfig())
    assert main.main(["convert", "folder", "--out", "my run"]) == 0
    assert capsys.readouterr().out.endswith("try: jaxformer generate 'my run' TEXT\n")


def test_errors_have_one_line(capsys, monkeypatch):
    def refuse(folder, out, length, say):
        raise DataError("no model")

    monkeypatch.setattr(pretrained, "convert", refuse)
    assert main.main(["convert", "folder", "--out", "run"]) == 2
    assert capsys.readouterr().err == "jaxformer convert: no model\n"


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
