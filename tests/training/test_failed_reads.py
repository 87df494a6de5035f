"""Reads that are in progress when another one fails leave no traces in the interpreter."""

import asyncio
import gc
import sys
import types

import pytest

from jaxformer import training
from jaxformer.training import failed_reads
from tests.training.small import abstract, data_files, new_state, saved


@pytest.fixture
def reported(monkeypatch):
    """What a user's own hook receives."""
    reports = []
    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: reports.append(str(unraisable.exc_value)))
    return reports


def test_a_failed_restore_leaves_the_hook_of_the_user(tmp_path, reported):
    """It stayed replaced until the end of the process."""
    mine = sys.unraisablehook
    saved(tmp_path, steps=(1,))
    for file in data_files(tmp_path / "1"):
        file.write_bytes(b"damaged")
    with training.Checkpoints(tmp_path) as checkpoints, pytest.raises(training.CheckpointError, match="step 1"):
        checkpoints.restore(1, abstract(new_state()))
    gc.collect()
    assert sys.unraisablehook is mine
    assert reported == []


class Bad:
    def __del__(self):
        raise OSError("of the user")


def test_other_reports_reach_the_hook_of_the_user(reported):
    with failed_reads.silent():
        sys.unraisablehook(types.SimpleNamespace(object=None, exc_value=RuntimeError("Event loop is closed")))
        Bad()
    assert reported == ["of the user"]


def test_reads_in_progress_are_waited_for(monkeypatch):
    """A read that ends later would be reported later, to the hook of the user."""

    async def read(future):
        await future

    read.__code__ = read.__code__.replace(co_filename="/site-packages/orbax/reader.py")
    loop = asyncio.new_event_loop()
    reads, slept = [read(loop.create_future())], []
    reads[0].send(None)
    monkeypatch.setattr(failed_reads.time, "sleep", lambda _: slept.append(len(reads)) or (slept[2:] and reads.clear()))
    monkeypatch.setattr(failed_reads.time, "monotonic", lambda: 0.0)  # collecting garbage takes seconds under load
    failed_reads.wait()
    loop.close()
    assert slept == [1, 1, 1]
