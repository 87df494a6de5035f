"""A mixture of two corpora: on two hosts as on one, and after kill -9 with other weights for the steps to come."""

import json
import signal

import chex
import pytest

from jaxformer import demo
from tests.faults.hosts import Run, losses, parameters, report, same

pytestmark = pytest.mark.faults
STEPS, CHANGE, LIMIT = 60, 51, 600
CORPORA = {"en_fr": ("en", "fr", 2), "fr_en": ("fr", "en", 1)}


def settings(reweighted=""):
    words = ["--data.source", "", "--data.target", "", "--data.held_out", "20", "--data.tags", "target"]
    for name, (source, target, weight) in CORPORA.items():
        entry = {"source": source, "target": target, "target_language": target, "weight": weight}
        words += [word for key, value in entry.items() for word in (f"--data.corpora.{name}.{key}", str(value))]
    return [*words, *(["--data.corpora.en_fr.reweighted", reweighted] if reweighted else [])]


def tokens(folder, out):
    """The tokens of each corpus in each step."""
    rows = [json.loads(line) for line in (folder / out / "log.jsonl").read_text().splitlines()]
    return [[row[f"tokens/{name}"] for name in CORPORA] for row in rows if "loss" in row]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The folder of a run of two hosts and one of one host, which were never stopped."""
    folder, pairs = tmp_path_factory.mktemp("mixtures"), demo.generate(1000)
    (folder / "en").write_text("".join(f"{pair.english}\n" for pair in pairs))
    (folder / "fr").write_text("".join(f"{pair.french}\n" for pair in pairs))
    Run(folder, "two", settings=settings(f"{CHANGE}=0")).finish(LIMIT)
    Run(folder, "one", hosts=1, devices=4, settings=settings(f"{CHANGE}=0")).finish(LIMIT)
    return folder


def test_one_host_sees_the_same_batches(folder):
    counts = tokens(folder, "two")
    assert counts == tokens(folder, "one")
    assert [each[0] > 0 for each in counts] == [step < CHANGE for step in range(1, STEPS + 1)]
    chex.assert_trees_all_close(*([loss for _, loss in losses(folder, out)] for out in ("two", "one")), rtol=1e-5)
    chex.assert_trees_all_close(*(parameters(folder, out, STEPS) for out in ("two", "one")), rtol=0, atol=1e-4)


def test_killed_and_resumed_with_other_weights(folder):
    """Those before the change are those of the killed run, which knew of no change."""
    killed = Run(folder, "killed", hosts=1, devices=4, settings=settings())
    killed.wait_for_step(12, LIMIT)
    killed.hosts[0].send_signal(signal.SIGKILL)
    killed.codes(LIMIT)
    assert 10 <= killed.steps() < CHANGE
    again = Run(folder, "killed", hosts=1, devices=4, settings=settings(f"{CHANGE}=0")).finish(LIMIT)
    assert "data.corpora.en_fr.reweighted is now 51=0, was " in again.said(0)
    assert same(folder, "killed", "one", STEPS)
    report("kill -9 of a run of two corpora", tried=1, survived=1)
