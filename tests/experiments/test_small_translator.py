"""The experiment on a small translator to publish: its split, and the folder of its smoke version."""

import hashlib
import json
import pathlib

import numpy as np
import pytest

import jaxformer
from experiments.small_translator import __main__ as command
from experiments.small_translator import card, corpus
from jaxformer import interop
from jaxformer.errors import ConfigError, DataError
from jaxformer.tasks import pretrained
from tests.experiments.smoke import check_resumes

ROOT = pathlib.Path(__file__).parents[2]
DRAW = np.random.default_rng(0)
PAIRS = [(f"e{i}", f"g{j}") for i, j in DRAW.integers(0, 300, (600, 2))]


def test_nothing_of_a_held_out_sentence_is_in_the_training():
    """Neither it, nor any of its translations, alone or in a joined line; every other pair is there."""
    parts = corpus.split(PAIRS, {"val": 20, "test": 30})
    held_out = {english for name in ("val", "test") for english, _ in parts[name]}
    known = {german for english, german in PAIRS if english in held_out}
    assert [len(parts["val"]), len(parts["test"]), len(held_out)] == [20, 30, 50]
    words = [{word for line in side for word in line.split()} for side in zip(*parts["train"], strict=True)]
    assert not words[0] & held_out
    assert not words[1] & known
    alone = [pair for pair in parts["train"] if " " not in pair[0]]
    kept = [pair for pair in PAIRS if pair[0] not in held_out and pair[1] not in known]
    assert sorted(alone) == sorted(kept)
    joined = parts["train"][len(alone) :]
    assert len(joined) == len(kept) // corpus.JOINED
    for english, german in joined:
        assert set(zip(english.split(), german.split(), strict=True)) <= set(kept)
        assert 2 <= len(english.split()) <= 4


def test_the_split_does_not_depend_on_the_order_of_lines():
    one, other = (corpus.split(pairs, {"test": 30}) for pairs in (PAIRS, PAIRS[300:] + PAIRS[:300]))
    assert [english for english, _ in one["test"]] == [english for english, _ in other["test"]]


def test_a_line_that_is_no_pair_is_refused(tmp_path):
    path = tmp_path / "eng-deu.tsv"
    path.write_text("Hi.\tHallo!\nRun!\n")
    with pytest.raises(DataError, match="line 2: it must have two columns with text, got 1"):
        corpus.read_pairs(path)


def test_data_of_other_pairs_are_refused(tmp_path):
    """As those of a smoke version that was stopped: they would be trained on, and published as Tatoeba's."""
    parts = corpus.split(PAIRS, {"test": 30})
    corpus.write_parts(parts, tmp_path)
    corpus.write_parts(parts, tmp_path)
    with pytest.raises(ConfigError, match=r"train\.en holds other data; choose another --out"):
        corpus.write_parts(corpus.split(PAIRS[:500], {"test": 30}), tmp_path)


@pytest.mark.full
def test_the_parameters_fit():
    """In bfloat16, they are two bytes each, as are the sines of both sides, which the format stores, below a header."""
    config = command.small()
    tables = 2 * config.model.max_positions * config.model.d_model
    net = jaxformer.tasks.translation.TASK.network(config, config.data.vocab_size).net
    assert 5_500_000 < 2 * (net.num_parameters + tables) < command.LARGEST - 50_000


@pytest.mark.full
def test_the_smoke_version_writes_a_folder_that_others_read(tmp_path, capsys):
    arguments = ["--smoke", "--out", str(tmp_path)]
    assert command.main([*arguments, "--minutes", "0.00001"]) == 85
    check_resumes(command.main, arguments, tmp_path, capsys)
    folder = tmp_path / command.NAME
    found = json.loads((tmp_path / "records" / f"{command.NAME}.json").read_text())
    weights = (folder / "model.safetensors").read_bytes()
    assert (len(weights), hashlib.sha256(weights).hexdigest()) == (found["bytes"], found["sha256"])
    tables = 2 * 512 * 32  # the sines of both sides, which the format stores
    assert len(weights) < 2 * (found["parameters"] + tables) + 10_000
    assert interop.load_pretrained(folder).settings["dtype"] == "bfloat16"
    card = (folder / "README.md").read_text()
    assert "license: cc-by-2.0" in card
    assert found["sha256"] in card
    assert "CC BY 2.0" in (folder / "ATTRIBUTION.txt").read_text()
    about = json.loads((folder / "provenance.json").read_text())
    assert about["configuration"]["train"]["steps"] == 6
    assert str(tmp_path) not in json.dumps(about["configuration"])
    pretrained.convert(folder, tmp_path / "again")
    files = [folder / "test.en", folder / "test.de"]
    (scores,) = jaxformer.evaluate(tmp_path / "again", files=files).values()
    assert [score.value for score in scores] == [score["value"] for score in found["scores"]]


def test_the_published_translator_is_that_of_its_record(tmp_path):
    """The folder in `examples`, converted, translates as its card says; the notice of its license is there."""
    folder, record = ROOT / "examples" / "en-de-tatoeba", ROOT / "experiments" / "small_translator" / "results"
    found = json.loads((record / "en-de-tatoeba.json").read_text(encoding="utf-8"))
    content = (folder / "model.safetensors").read_bytes()
    assert (hashlib.sha256(content).hexdigest(), len(content)) == (found["sha256"], found["bytes"])
    assert (folder / "ATTRIBUTION.txt").read_text(encoding="utf-8") == card.ATTRIBUTION
    assert (folder / "README.md").read_text(encoding="utf-8") == card.card(found)
    pretrained.convert(folder, tmp_path / "run")
    texts, expected = zip(*found["examples"].items(), strict=True)
    assert tuple(jaxformer.load(tmp_path / "run").translate(texts)) == expected
