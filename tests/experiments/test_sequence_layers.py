"""The comparison of sequence layers: tasks, counts against one another, paths, and a resumed run."""

import dataclasses
import itertools
import json
import math

import numpy as np
import pytest

from experiments.sequence_layers import __main__ as command
from experiments.sequence_layers import costs, layers, recall
from jaxformer.errors import ConfigError
from tests.selection import first


def test_the_copy_task_asks_at_its_distance():
    tokens, answers = recall.copy(np.random.default_rng(0), 3, 10)
    assert tokens.shape == (3, 14)
    np.testing.assert_array_equal(tokens[:, :4] - recall.DATA, answers)
    assert (tokens[:, 4:10] == recall.BLANK).all()
    assert (tokens[:, 10:] == recall.RECALL).all()


def test_the_selective_task_asks_by_label():
    tokens, answers = recall.selective(np.random.default_rng(0), 50, 16)
    for row, expected in zip(tokens, answers, strict=True):
        found = np.flatnonzero(row >= recall.DATA)
        assert len(found) == recall.COUNT
        assert found.max() < 8
        told = {(row[i] - recall.DATA) // recall.SYMBOLS: (row[i] - recall.DATA) % recall.SYMBOLS for i in found}
        assert [told[ask - recall.ASK] for ask in row[-recall.COUNT :]] == expected.tolist()
        assert (row[8:16] < recall.NOISE).all()
    assert len({tuple(np.flatnonzero(row >= recall.DATA)) for row in tokens}) > 25


@pytest.mark.full
def test_networks_have_equal_parameters():
    sizes = {kind: recall.size(recall.network(kind, recall.Budget.parameters)) for kind in recall.BLOCKS}
    assert max(sizes.values()) / min(sizes.values()) < 1.1, sizes


@pytest.mark.parametrize("kind", first(costs.MAKES, "recurrent", "dilated", "window"))
def test_counts_agree_with_shapes(kind, monkeypatch):
    """The graph's count equals that of the shapes; XLA also counts the bias, and no taps on padding."""
    monkeypatch.setattr(costs, "D_MODEL", 16)
    for length in (64, 512):
        found = costs.operations(kind, length)
        assert found["graph_flops"] == found["shape_flops"]
        if "xla_flops" in found:
            dilation = layers.dilations(length)[-1] if kind == "dilated" else 1
            padding = 2 * 16**2 * sum(min(length, k * dilation) for k in range(layers.KERNEL))
            assert found["xla_flops"] == found["graph_flops"] - padding + length * 16
        assert found["in_a_row"] == {"recurrent": length, "convolution": 1, "dilated": 1}.get(kind, found["in_a_row"])
        assert kind == "recurrent" or found["in_a_row"] <= 5
    if kind in ("attention", "window"):  # at 512 in blocks of 256, the mask rules out one block of four
        assert found["graph_flops"] - found["flops"] == 4 * 256**2 * 16


@pytest.mark.full
def test_paths():
    """L - 1 steps of recurrence; (L - 1) / 2 convolutions of three; log_3 L of them if dilated; (L - 1) / r windows."""
    length = 200
    found = {kind: costs.path(kind, length) for kind in costs.MAKES}
    assert found == {
        "recurrent": length - 1,
        "convolution": math.ceil((length - 1) / 2),
        "dilated": math.ceil(math.log(length, 3)),
        "attention": 1,
        "window": math.ceil((length - 1) / costs.WINDOW),
        "linear": 1,
    }


@pytest.mark.full
def test_a_layer_reaches_the_same_offsets_from_every_row():
    for make in (layers.convolution(4, dilation=3), layers.attention(4, window=5)):
        assert costs.offsets(make, 40).tolist() == costs.offsets(make, 40, row=25).tolist()
    with pytest.raises(ValueError, match="last of 9 positions is not reached by 2 layers"):
        costs.hops(itertools.repeat([0, 1], 2), 9)


@pytest.mark.full
def test_a_network_learns_within_its_reach():
    """Four steps are near for a recurrent network; an untrained one guesses."""
    options = {"parameters": 3_000, "rates": (1e-2,), "chunk": 30, "warmup": 10, "examined": 128}
    budget = recall.Budget(rows=16, steps=90, **options)
    compiled, steps = recall.programs("recurrent", budget), []
    got = recall.learn("copy", "recurrent", 4, budget, steps.append, compiled)
    assert sum(steps) == budget.steps
    untrained = recall.learn("copy", "recurrent", 4, dataclasses.replace(budget, steps=0), steps.append, compiled)
    assert got["accuracy"] > 2 * untrained["accuracy"]


@pytest.mark.full
def test_the_smoke_run_writes_everything_and_resumes(tmp_path, capsys):
    out = tmp_path / "out"
    assert command.main(["--smoke", "--out", str(out)]) == 0
    assert {path.name for path in out.iterdir()} >= {"costs.json", "costs.md", "costs.png", "recall.json", "recall.png"}
    first = json.loads((out / "recall.json").read_text())
    assert len(first["cases"]) == len(recall.BLOCKS) * len(recall.TASKS)
    assert {"command", "commit", "date", "processor", "seconds"} <= first["calls"][0].keys()
    removed = first["cases"].pop("copy linear 16")
    (out / "recall.json").write_text(json.dumps(first))
    assert command.main(["--smoke", "--out", str(out), "--part", "recall"]) == 0
    again = json.loads((out / "recall.json").read_text())
    assert again["calls"][1]["cases"] == ["copy linear 16"]
    assert again["cases"]["copy linear 16"] == removed
    capsys.readouterr()
    assert command.main(["--out", str(out), "--part", "recall"]) == ConfigError.exit_code
    assert "holds results of other settings; give another --out" in capsys.readouterr().err
    (out / "recall.json").write_text("{")
    assert command.main(["--smoke", "--out", str(out), "--part", "recall"]) == ConfigError.exit_code
    assert "is not a results file" in capsys.readouterr().err
