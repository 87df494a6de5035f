"""Trackers that fail do not end the training; nor does a damaged file of identifiers. A copy has its own record."""

import json
import shutil
import sys
import types

import pytest

from jaxformer import training
from jaxformer.errors import ConfigError
from jaxformer.training.tracking import FILE, tracker
from tests.training.small import fit, new_state


def no_network(*_, **__):
    raise ConnectionError("no network\nand more lines")


def stand_in(name, calls, fails=()):
    """Returns a module that replaces a tracker's; the calls named in `fails` raise an exception."""

    def call(what):
        def note(*arguments, **options):
            calls.append((what, options))
            return no_network() if what in fails else module

        return note

    module = types.SimpleNamespace(id="new", summary=types.SimpleNamespace(update=call("update")))
    module.info = types.SimpleNamespace(run_id="new")
    names = {"wandb": ("init", "log", "finish"), "mlflow": ("start_run", "log_metrics", "set_tags", "end_run")}
    for each in names[name]:
        setattr(module, each, call(each))
    return module


TRACKERS = {"wandb": ("init", "log", "finish"), "mlflow": ("start_run", "log_metrics", "end_run")}


@pytest.mark.parametrize("name", TRACKERS)
def test_a_failing_tracker_does_not_end_the_training(name, tmp_path, monkeypatch, caplog):
    """It is not called again before the end: each call may wait for minutes."""
    begin, log, end = TRACKERS[name]
    calls = []
    monkeypatch.setitem(sys.modules, name, stand_in(name, calls, fails=(log, end)))
    (hook,) = tracker(name, tmp_path)
    validate = lambda state: {"loss": 1.0}
    result = fit(new_state(), 24, validate=validate, hooks=[hook], config={"validate_every": 4})
    assert result.reason == "done"
    assert [what for what, _ in calls if what not in ("update", "set_tags")] == [begin, log, end]
    (record,) = caplog.records
    assert record.getMessage() == (
        f"{type(hook).__name__} failed, and training goes on without it: ConnectionError: no network"
    )


def test_a_users_own_hook_still_ends_the_training():
    class Own(training.Hook):
        step = no_network

    with pytest.raises(ConnectionError):
        fit(new_state(), 2, hooks=[Own()])


@pytest.mark.parametrize("name", TRACKERS)
def test_a_tracker_that_cannot_begin(name, tmp_path, monkeypatch, caplog):
    """At the first start it is a mistake in the settings; a restart at night trains on."""
    monkeypatch.setitem(sys.modules, name, stand_in(name, [], fails=TRACKERS[name][0]))
    with pytest.raises(ConfigError, match=f"^train.log_to {name}: the tracker cannot begin: .*: no network; without"):
        tracker(name, tmp_path)
    assert tracker(name, tmp_path, resumed=True) == []
    assert "no network; training goes on without it" in caplog.text


@pytest.mark.parametrize("content", ["", "{", "[]", "é".encode("latin-1"), "[" * 100_000], ids=range(5))
def test_a_damaged_file_of_identifiers_is_a_warning(content, tmp_path, monkeypatch, caplog):
    calls = []
    monkeypatch.setitem(sys.modules, "wandb", stand_in("wandb", calls))
    (tmp_path / FILE).write_bytes(content if isinstance(content, bytes) else content.encode())
    tracker("wandb", tmp_path)
    assert calls[0][1]["id"] is None
    assert f"{tmp_path / FILE} is damaged: the tracker begins another record of this run" in caplog.text
    assert json.loads((tmp_path / FILE).read_text()) == {"wandb": "new", "folder": str(tmp_path)}
    tracker("wandb", tmp_path)
    assert calls[1][1]["id"] == "new"


@pytest.mark.parametrize(("name", "option"), [("wandb", "id"), ("mlflow", "run_id")])
def test_a_copy_of_a_run_has_a_record_of_its_own(name, option, tmp_path, monkeypatch, caplog):
    """A run is copied to be cooled down from there; one that has moved, or is reached by a link, is the same run."""
    calls = []
    monkeypatch.setitem(sys.modules, name, module := stand_in(name, calls))
    first, moved, copy = (tmp_path / folder for folder in ("first", "moved", "copy"))
    first.mkdir()
    tracker(name, first)
    first.rename(moved)
    tracker(name, moved, resumed=True)
    (tmp_path / "link").symlink_to(moved)
    tracker(name, tmp_path / "link", resumed=True)
    assert not caplog.text
    shutil.copytree(moved, copy)
    module.id = module.info.run_id = "other"
    tracker(name, copy, resumed=True)
    assert f"{copy} is a copy of {moved}: the tracker begins another record" in caplog.text
    for folder in (copy, moved):
        tracker(name, folder, resumed=True)
    shutil.copytree(moved, tmp_path / "kept")  # it keeps the record that the original no longer has
    (moved / FILE).write_text(json.dumps({name: "another", "folder": str(moved)}))
    tracker(name, tmp_path / "kept", resumed=True)
    assert [options[option] for _, options in calls] == [None, "new", "new", None, "other", "new", "other"]
