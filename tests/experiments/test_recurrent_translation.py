"""The experiment on recurrent translation: its parts, and its smoke version."""

import dataclasses
import itertools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.recurrent_translation import __main__ as command
from experiments.recurrent_translation import grid, joining, measures, report
from jaxformer import functional as F
from jaxformer import models, pure
from jaxformer.config import to_data
from jaxformer.data.pairs import Parallel
from jaxformer.evaluation.scores import bleu
from jaxformer.models.config import Seq2SeqConfig
from tests.experiments.smoke import check_resumes

PAIRS = Parallel(tuple(f"s{i}" for i in range(90)), tuple(f"t{i}" for i in range(90)))


def translated(text):
    return text.replace("s", "t")


def test_joined_pairs_stay_aligned_and_every_pair_comes_twice():
    found = joining.with_joined(PAIRS, seed=1)
    assert tuple(map(translated, found.source)) == found.target
    alone, joined = found.source[:90], [text.split() for text in found.source[90:]]
    assert alone == PAIRS.source
    assert sorted(itertools.chain(*joined)) == sorted(PAIRS.source)
    sizes = [len(words) for words in joined]
    assert set(sizes[:-1]) == set(joining.SIZES)  # the last one has the rest
    assert [word for words in joined for word in words] != list(PAIRS.source)
    assert found == joining.with_joined(PAIRS, seed=1) != joining.with_joined(PAIRS, seed=2)


def test_all_sizes_of_the_test_hold_the_same_sentences():
    found, sizes = joining.by_size(PAIRS, 11)
    assert [len(text.split()) for text in found.source] == sizes
    assert tuple(map(translated, found.source)) == found.target
    for size in (1, 2, 3, 4, 5):
        rows = [text for text, own in zip(found.source, sizes, strict=True) if own == size]
        assert " ".join(rows).split() == list(PAIRS.source[: 11 // size * size])


def test_more_pairs_than_there_are_cannot_be_joined():
    with pytest.raises(ValueError, match="at most 90, the number of pairs, got 91"):
        joining.join(PAIRS, [91])


def sentence(length, said):
    text = " ".join(f"w{i}" for i in range(length))
    return {"source": text, "reference": text, "hypothesis": text if said else "x " * length}


def test_bins_hold_their_lengths():
    rows = [sentence(length, True) for length in (1, 9, 10, 14, 15, 40)]
    assert measures.bins(rows, [10, 15, 30]) == {"1-9": [0, 1], "10-14": [2, 3], "15-29": [4], "30+": [5]}


def test_scores_are_those_of_the_chosen_rows():
    lengths = [6, 7, 8, 20, 21, 22]
    good = [sentence(n, True) for n in lengths]
    weak = [sentence(n, n < 10) for n in lengths]
    short, long = measures.bins(good, [10]).values()
    found = measures.compare({"good": good, "weak": weak}, short, samples=50)
    assert found["weak"]["bleu"] == pytest.approx(found["good"]["bleu"]) == pytest.approx(100)
    found = measures.compare({"good": good, "weak": weak}, long, samples=50)
    assert (round(found["good"]["bleu"]), round(found["weak"]["bleu"])) == (100, 0)
    assert found["weak"]["p"] < 0.05
    mixed = measures.compare({"good": good, "weak": weak}, range(6), samples=50)["weak"]
    assert mixed["bleu"] == pytest.approx(bleu([r["hypothesis"] for r in weak], [r["reference"] for r in weak]).value)
    assert mixed["half width"] > 0
    with pytest.raises(ValueError, match="sentences of 'good'"):
        measures.compare({"good": good, "other": weak[::-1]}, range(6), samples=50)


@pytest.mark.parametrize(("level", "step"), [(5.0, 100.0), (4.0, 150.0), (2.5, 250.0), (1.0, None)])
def test_time_to_a_level_lies_between_validations(level, step):
    assert measures.steps_to([(100, 5.0), (200, 3.0), (300, 2.0)], level) == step


def test_gradient_norms_are_powers_of_a_linear_network(monkeypatch):
    """With a recurrent kernel of 0.9 times a rotation and a rotation of inputs, the norm at distance d is 0.9 ** d."""
    linear = lambda inputs, recurrent, state: F.RecurrentState((inputs + recurrent)[..., 0, :])
    rotations = [
        jnp.linalg.qr(jax.random.normal(key, (4, 4)))[0][:, None] for key in jax.random.split(jax.random.key(0))
    ]
    weights = F.RecurrentWeights(rotations[0], 0.9 * rotations[1], jnp.zeros((1, 4)), jnp.zeros((1, 4)))
    x = jax.random.normal(jax.random.key(1), (3, 7, 4))
    norms = measures.gradient_norms(linear, weights, x, jax.random.key(2))
    np.testing.assert_allclose(norms, 0.9 ** np.arange(7), rtol=1e-5)


@pytest.mark.full
def test_r6_an_lstm_keeps_more_of_a_gradient_than_an_rnn():
    found = measures.initial_gradient_norms(16, 17, seeds=[0, 1])
    reach = {name: np.array(runs)[:, 16] / np.array(runs)[:, 0] for name, runs in found.items()}
    assert reach["lstm"].min() > 10 * reach["rnn"].max()


def test_the_clock_counts_steps_and_not_validations(tmp_path, monkeypatch):
    now = iter([0.0, 1.0, 3.0, 50.0, 51.0])
    monkeypatch.setattr(measures.time, "process_time", lambda: next(now))
    clock = measures.StepClock(tmp_path / "clock.json")
    for step in (1, 2, 3):
        clock.step(step, {})
    clock.validated(3, {}, True)
    clock.step(4, {})
    clock.saved(4, tmp_path)
    later = measures.StepClock(tmp_path / "clock.json")
    assert later.seconds == [1.0, 2.0]
    assert later.median == 1.5


@pytest.mark.full
def test_configurations_differ_only_in_the_model_and_sizes_are_close():
    scale = dataclasses.replace(grid.SMOKE, kinds=grid.KINDS)
    configs = {}
    for cell in grid.cells(scale, seeds=1):
        if cell.corpus == "grammar":
            configs[cell.kind] = grid.configuration(cell, scale, data={})
    assert set(configs) == set(grid.KINDS)
    size_of = lambda model, config: pure(model, config).num_parameters
    size = size_of(models.EncoderDecoder, configs["transformer"].model)
    for config in configs.values():
        if isinstance(config.model, Seq2SeqConfig):
            states = [config.model.hidden_size + change for change in (-2, 0, 2)]
            made = [size_of(models.Seq2Seq, dataclasses.replace(config.model, d_hidden=n)) for n in states]
            assert np.argmin(np.abs(np.array(made) - size)) == 1
    others = [to_data(config) | {"model": None, "name": None} for config in configs.values()]
    assert all(other == others[0] for other in others)


def test_each_cell_has_its_own_folder():
    tried = dataclasses.replace(grid.FULL, rates=(1e-3, 3e-3))
    names = [cell.name for cell in grid.cells(tried, seeds=2)]
    assert len(names) == len(set(names))
    assert names[:2] == ["multi30k-fixed-rate-0.001-seed-0", "multi30k-fixed-rate-0.003-seed-0"]


def record(kind, curve, **results):
    return {
        **{"corpus": "grammar", "kind": kind, "cell": "-" if kind == "transformer" else "lstm", "seed": 0},
        **{"rate": 3e-3, "steps": 20, "parameters": 1000, "curve": curve, "loss": curve[-1][1]},
        **{"cpu seconds of a step": 0.5, "minutes": 1.0, "scores": {"test": {"BLEU": 1.0}}},
        "translations": [{"source": "Je suis étudiant.", "reference": "", "said": f"said by {kind}"}],
        **results,
    }


def test_the_report_follows_from_the_records(tmp_path):
    aer = {"unseen sentences": 0.25, "unseen combinations": 0.5}
    records = {
        "a": record("fixed", [(10, 4.0), (20, 3.0)], gradients=[1.0, 0.1, 0.01]),
        "b": record("additive", [(10, 3.5), (20, 2.5)], gradients=[1.0, 0.1], aer=aer, diagonal=aer, head="head 0"),
    }
    records["c"] = records["b"] | {"rate": 1e-2, "loss": 2.75, "scores": {"test": {"BLEU": 9.0}}}  # not the best rate
    sizes = [1, 1, 2]
    for name, good in (("a", [True, True, False]), ("b", [True, True, True])):
        rows = [sentence(length, said) for length, said in zip((6, 7, 13), good, strict=True)]
        (tmp_path / "hypotheses").mkdir(exist_ok=True)
        (tmp_path / "hypotheses" / f"{name}.json").write_text(json.dumps({"test": rows}))
    initial = {"rnn": [[2.0, 1.0, 0.5], [2.0, 0.5, 0.0]]}
    text = report.report(records, tmp_path, {"grammar": sizes}, initial, grid.SMOKE)
    assert "| rnn | 2.5e-01 to 5.0e-01 | 0.0e+00 to 2.5e-01 |" in text
    assert "| additive | 3.000 | 15 | 8 |" in text  # half way between its validations, at 0.5 s a step
    assert "| 1 | 2 | 100.00 ± 0.00 (1.00) | 100.00 ± 0.00 (1.00) |" in text
    assert "| 2 | 1 | 0.00 ± 0.00 (1.00) | 100.00 ± 0.00 (1.00) |" in text
    assert "| 10-14 | 1 | 0.00" in text
    assert "| additive | 0.250 | 0.500 | head 0 |" in text
    assert "said by additive" in text
    assert "| 0.01 | 20 | 2.750 | 9.00 |" in text
    assert text.count("said by additive") == 1
    derived = json.loads((tmp_path / "results.json").read_text())["derived"]
    assert derived["grammar by joined sentences"]["2"]["additive"]["bleu"] == pytest.approx(100)
    assert len(list((tmp_path / "pictures").iterdir())) == 4


def test_initial_gradients_are_those_of_the_scale(tmp_path, monkeypatch):
    """A folder may hold those of another one, such as --small; they are computed once for each call's scale."""
    calls = []
    compute = lambda size, length, *, seeds: calls.append(size) or {"rnn": [[float(size)] * length for _ in seeds]}
    monkeypatch.setattr(command.measures, "initial_gradient_norms", compute)
    for _ in range(2):
        assert command._initial_gradients(tmp_path / "g.json", grid.SMALL)["rnn"][0][0] == 64
    found = command._initial_gradients(tmp_path / "g.json", grid.FULL)["rnn"]
    assert (found[0][0], len(found), len(found[0])) == (128, grid.FULL.gradient_seeds, grid.FULL.distances)
    assert calls == [64, 128]


@pytest.mark.full
def test_the_smoke_version_trains_once_and_reports(tmp_path, capsys):
    arguments = ["--smoke", "--out", str(tmp_path)]
    text = check_resumes(command.main, arguments, tmp_path, capsys)
    assert "grammar: BLEU by joined sentences" in text
    assert "Alignment error rate" in text
    results = json.loads((tmp_path / "results.json").read_text())
    cells = [cell.name for cell in grid.cells(grid.SMOKE, seeds=1)]
    assert list(results["records"]) == cells
    names = ("gradient-norms", "curves-grammar", "bleu-grammar-by-words", f"attention-{cells[-1]}")
    assert all((tmp_path / "pictures" / f"{name}.png").exists() for name in names)
    # A lost record is made again from the finished training.
    (tmp_path / "records" / f"{cells[0]}.json").unlink()
    assert command.main(arguments) == 0
    assert capsys.readouterr().out.count("\ncell ") == 1
    again = json.loads((tmp_path / "results.json").read_text())["records"][cells[0]]
    assert again["curve"] == results["records"][cells[0]]["curve"]
