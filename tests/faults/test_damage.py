"""Every file of the newest checkpoint, with a bit flipped or its end cut off: never a wrong value, never a crash."""

import shutil

import chex
import numpy as np
import pytest

from jaxformer import training
from tests.faults.hosts import report
from tests.training.small import abstract, new_state, saved

pytestmark = pytest.mark.faults


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    folder = tmp_path_factory.mktemp("good")
    return folder, saved(folder, steps=(1, 2))


def kind(path):
    return "array data" if "/d/" in path else "what we know of it" if path.startswith("about") else "metadata"


@pytest.mark.parametrize("damage", ["a flipped bit", "a cut end", "an empty file"])
def test_no_file_can_be_damaged_unnoticed(good, damage, tmp_path):
    """A relevant file: falls back with a warning; any other: the newest step is exact."""
    folder, states = good
    names = sorted(str(p.relative_to(folder / "2")) for p in (folder / "2").rglob("*") if p.is_file())
    random, found = np.random.default_rng(0), {}
    for name in names:
        for trial in range(12 if damage == "a flipped bit" else 1):
            copy = tmp_path / f"{len(found)}-{trial}"
            shutil.copytree(folder, copy)
            path = copy / "2" / name
            data = bytearray(path.read_bytes())
            if not data:
                continue
            if damage == "a flipped bit":
                data[random.integers(len(data))] ^= 1 << random.integers(8)
            path.write_bytes(data if damage == "a flipped bit" else data[:-7] if damage == "a cut end" else b"")
            with training.Checkpoints(copy) as checkpoints:
                state, about = checkpoints.restore_latest(abstract(new_state()))
            chex.assert_trees_all_equal(state, states[about["step"]])
            assert about["note"] == f"step {about['step']}", name
            tried, fell_back = found.get(kind(name), (0, 0))
            found[kind(name)] = tried + 1, fell_back + (about["step"] == 1)
            shutil.rmtree(copy)
    assert {"array data", "metadata", "what we know of it"} <= found.keys()
    assert found["array data"][1] > 0
    for what, (tried, fell_back) in found.items():
        report(f"{damage} in {what}", tried=tried, survived=tried, fell_back=fell_back)
