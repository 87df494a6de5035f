"""Trimmed runs compute what the whole ones do; planted differences are found before the run is complete."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxformer
from jaxformer import models
from jaxformer.cli import main
from jaxformer.errors import DataError
from jaxformer.models import families
from jaxformer.tasks import pretrained, trim
from tests.interop.small import folder
from tests.tasks.pretrained import translators as multilingual
from tests.tokenizers import pretrained as tokenizers

SIZES = {"d_model": 12, "num_heads": 2, "d_ff": 12}
TEXT = "the old man sees the house\nthe garden\n"


@pytest.fixture(scope="module")
def translator(tmp_path_factory):
    """A BART, with one table for all its tokens, a bias for each, and a token before each text."""
    path = tmp_path_factory.mktemp("bart")
    names = {"bos_token": "<s>", "eos_token": tokenizers.END, "pad_token": "<pad>"}
    ids = {"decoder_start_token_id": 0, "forced_bos_token_id": 1, "pad_token_id": 2, "max_length": 12}
    sizes = SIZES | {"num_encoder_layers": 1, "num_decoder_layers": 1, "max_positions": 64}
    folder(path / "in", "bart", models.EncoderDecoder, families.bart(325, **sizes), **ids)
    tokenizers.write(path / "in", tokenizers.byte_level(begin="<s>", pad="<pad>", end=True), names)
    pretrained.convert(path / "in", path / "run")
    (path / "text").write_text(TEXT)
    return path / "run"


@pytest.fixture(scope="module")
def language_model(tmp_path_factory):
    path = tmp_path_factory.mktemp("gpt2")
    names = {"eos_token": tokenizers.END, "bos_token": tokenizers.END}
    folder(path / "in", "gpt2", models.LanguageModel, families.gpt2(325, **SIZES, num_layers=1, max_positions=64))
    tokenizers.write(path / "in", tokenizers.byte_level(), names)
    pretrained.convert(path / "in", path / "run")
    (path / "text").write_text(TEXT)
    return path / "run"


@pytest.mark.parametrize("kind", ["translator", "language_model"])
def test_a_trimmed_run_does_what_the_whole_one_does(kind, request, tmp_path):
    run = request.getfixturevalue(kind)
    proof = trim.trim(run, tmp_path / "out", corpus=[run.parent / "text"])
    assert proof.texts == 2
    assert proof.sizes[1] < proof.sizes[0]
    whole, small = jaxformer.load(run), jaxformer.load(tmp_path / "out")
    assert small.tokenizer.vocab_size < whole.tokenizer.vocab_size
    rows = {name: token for token, name in enumerate(whole.tokenizer.names)}
    rows = [rows[name] for name in small.tokenizer.names]
    embeddings = lambda predictor: next(
        x for path, x in jax.tree_util.tree_leaves_with_path(predictor.params) if "tokens" in str(path)
    )
    np.testing.assert_array_equal(embeddings(small)[: len(rows)], embeddings(whole)[jnp.asarray(rows)])
    assert any("bias" in name for name in proof.tables)
    about = json.loads((tmp_path / "out" / "provenance.json").read_text())
    assert about["tokens"] == [len(rows), whole.tokenizer.vocab_size]
    assert about["trimmed_tokenizer"] == whole.tokenizer.fingerprint
    pretrained.export(tmp_path / "out", tmp_path / "hf")
    trim.trim(tmp_path / "out", tmp_path / "again", corpus=[_first_line(tmp_path)])


def test_a_translator_of_many_languages(tmp_path, capsys):
    """All languages stay; the comparison needs one of them, and says so before anything is written."""
    multilingual.folder(tmp_path / "in", "nllb")
    pretrained.convert(tmp_path / "in", tmp_path / "run")
    (tmp_path / "text").write_text(f"{multilingual.TEXT}\n{multilingual.TRANSLATION}\n")
    words = ["trim", str(tmp_path / "run"), "--corpus", str(tmp_path / "text"), "--out", str(tmp_path / "out")]
    for more, message in (([], "choose one with --to LANGUAGE"), (["--to", "deu"], "did you mean 'deu_Latn'")):
        assert main.main([*words, *more]) == 2
        assert message in capsys.readouterr().err
        assert not (tmp_path / "out").exists()
    assert main.main([*words, "--to", "deu_Latn"]) == 0
    whole, small = jaxformer.load(tmp_path / "run").to("fra_Latn"), jaxformer.load(tmp_path / "out").to("fra_Latn")
    assert [*small.tokenizer.tags] == [*whole.tokenizer.tags]
    first = [one.candidates([multilingual.TEXT])[0][0].tokens[0] for one in (whole, small)]
    assert first == [one.tokenizer.tags["fra_Latn"] for one in (whole, small)]
    assert first[0] != first[1]


def _first_line(folder):
    (folder / "less").write_text(TEXT.splitlines()[1] + "\n")
    return folder / "less"


def _shifted(params, whole, small, tokens, size):
    return CUT(params, whole, small, np.roll(tokens, 1), size)


def _one_changed(params, whole, small, tokens, size):
    cut = CUT(params, whole, small, tokens, size)
    leaves, tree = jax.tree.flatten(cut)
    return jax.tree.unflatten(tree, [leaves[0].at[0].add(1e-6), *leaves[1:]])


CUT = trim.cut_tables


@pytest.mark.parametrize("planted", [_shifted, _one_changed])
def test_wrong_tables_leave_nothing(language_model, tmp_path, monkeypatch, planted):
    monkeypatch.setattr(trim, "cut_tables", planted)
    with pytest.raises(DataError, match=r"the rows of .* are not those of its tokens"):
        trim.trim(language_model, tmp_path / "out", corpus=[language_model.parent / "text"])
    assert not [*tmp_path.iterdir()]


def test_wrong_logits_and_texts_are_found(language_model, tmp_path, monkeypatch):
    """The same rows do not suffice: the model must also use them in the same way."""
    trim.trim(language_model, tmp_path / "out", corpus=[language_model.parent / "text"])
    whole, small = jaxformer.load(language_model), jaxformer.load(tmp_path / "out")
    rows = {name: token for token, name in enumerate(whole.tokenizer.names)}
    tokens = np.asarray([rows[name] for name in small.tokenizer.names])
    negative = dataclasses.replace(small, params=jax.tree.map(jnp.negative, small.params))
    monkeypatch.setattr(trim, "_same_rows", lambda *predictors: ())
    with pytest.raises(DataError, match="logits of the trimmed run differ"):
        trim.prove(whole, negative, tokens, TEXT.splitlines())
    monkeypatch.setattr(trim, "_logits_differ", lambda *arguments: 0.0)
    with pytest.raises(DataError, match=r"continues .* in another way"):
        trim.prove(whole, negative, tokens, TEXT.splitlines())


def test_bad_input(language_model, tmp_path, capsys):
    text, empty = str(language_model.parent / "text"), tmp_path / "empty"
    empty.write_text("\n")
    run, out = str(language_model), str(tmp_path / "out")
    for words, message in (
        ([run, "--corpus", text, "--out", str(tmp_path)], "exists"),
        ([run, "--corpus", str(empty), "--out", out], "holds no text"),
        ([run, "--corpus", str(tmp_path / "none"), "--out", out], "none"),
        ([run, "--out", out], "no corpus: give --corpus FILE"),
        ([run, "--corpus", text, "--out", out, "--sentences", "0"], "--sentences must be at least 1"),
    ):
        assert main.main(["trim", *words]) == 2
        assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
