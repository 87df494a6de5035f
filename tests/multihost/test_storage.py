"""Files that all processes must see alike; a list simulates the results of exchanges with the other processes."""

import time

import pytest

from jaxformer.multihost import cluster, processes, storage


@pytest.fixture
def exchanges(monkeypatch):
    """What `cluster.unequal_processes` returns, one after another; it keeps the texts that this process sent."""
    found, texts = [], []
    monkeypatch.setattr(cluster, "unequal_processes", lambda text: texts.append(text) or found.pop(0))
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    return found, texts


def test_one_process_shares_with_itself(tmp_path, monkeypatch):
    monkeypatch.setattr(time, "sleep", lambda seconds: pytest.fail("it waits for itself"))
    storage.wait_for_file(tmp_path / "none")
    storage.wait_for_run(tmp_path / "none", ["config.json"])
    assert not list(tmp_path.iterdir())


def test_late_files_are_awaited(exchanges, tmp_path):
    found, texts = exchanges
    found += [["process 2 (c)"], ["process 2 (c)"], []]
    storage.wait_for_file(tmp_path / "tokenizer.model")
    assert (found, len(texts)) == ([], 3)


def test_the_first_process_ends_the_wait(exchanges, tmp_path, monkeypatch):
    """Its clock decides, so no process continues alone."""
    found, _ = exchanges
    found += [["process 1 (b)", "process 2 (c)"]] * 3
    answers = [False, False, True]
    monkeypatch.setattr(processes, "broadcast", lambda by_first: answers.pop(0))
    message = (
        r"run still looks different to process 1 \(b\), process 2 \(c\) than to process 0 after 7 s; it must be on"
    )
    with pytest.raises(cluster.DistributedError, match=message) as error:
        storage.wait_for_run(tmp_path / "run", [], seconds=7)
    assert error.value.exit_code == 1
    assert answers == []


def test_every_compared_property_differs(exchanges, tmp_path):
    """Each of these differs from the one before."""
    found, texts = exchanges
    run = tmp_path / "run"
    changes = [
        lambda: None,
        lambda: (run / "checkpoints").mkdir(parents=True),
        lambda: (run / "config.json").write_text("1"),
        lambda: ((run / "log.jsonl").touch(), (run / "config.json").write_text("2")),  # no run yet: its log is empty
        lambda: (run / "log.jsonl").write_text("a line"),
        lambda: (run / "checkpoints" / "10").mkdir(),
    ]
    for change in changes:
        change()
        found.append([])
        storage.wait_for_run(run, ["config.json"])
    assert len(set(texts)) == len(changes)
    for same in (lambda: (run / "log.jsonl").write_text("more"), lambda: (run / "checkpoints" / "20.tmp").mkdir()):
        same()
        found.append([])
        storage.wait_for_run(run, ["config.json"])
        assert texts[-1] == texts[len(changes) - 1]
