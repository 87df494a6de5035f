"""Packages whose names are imported when they are first used."""

import importlib
import inspect
import json
import pathlib
import pydoc
import re
import subprocess
import sys

import pytest

from jaxformer import (
    data,
    decoding,
    evaluation,
    functional,
    inspection,
    interop,
    masks,
    models,
    modules,
    multihost,
    planning,
    sharding,
    tasks,
    tokenizers,
    training,
)
from jaxformer.tasks import language_model, translation


@pytest.mark.parametrize("package", [models, training, translation, language_model], ids=lambda x: x.__name__)
def test_every_name_that_an_editor_sees_is_there(package):
    """Type checkers read one list of imports, Python another."""
    lines = pathlib.Path(package.__file__).read_text(encoding="utf-8").splitlines()
    names = [line.rpartition(" as ")[2].strip() for line in lines if " import " in line and " as " in line]
    assert len(names) > 3
    for name in names:
        assert getattr(package, name) is not None


def test_a_name_is_imported_once_and_a_submodule_is_an_attribute():
    get = training.__getattr__
    assert get("make_step") is training.make_step
    assert vars(training)["make_step"] is training.make_step
    assert get("schedules") is importlib.import_module("jaxformer.training.schedules")
    with pytest.raises(AttributeError, match=r"module 'jaxformer\.training' has no attribute 'mkae_step'"):
        get("mkae_step")


LAZY = [data, evaluation, inspection, interop, models, multihost, planning, tasks, tokenizers, training, translation]


PROGRAM = """
import importlib, json
packages = [importlib.import_module(name) for name in NAMES]
print(json.dumps([[dir(package), package.__all__] for package in packages]))
brought = []
for name in NAMES:
    room = {}
    exec(f"from {name} import *", room)
    brought.append(list(room))
print(json.dumps(brought))
"""


@pytest.mark.full
def test_every_name_can_be_completed_and_imported_by_a_star():
    """In a new process: `dir` was empty, and a star brought nothing, before a name was first used."""
    program = f"NAMES = {[package.__name__ for package in LAZY]}{PROGRAM}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True)
    before, brought = map(json.loads, done.stdout.splitlines())
    for package, (seen, public), names in zip(LAZY, before, brought, strict=True):
        files = {path.stem for path in pathlib.Path(package.__file__).parent.iterdir() if path.name[0] != "_"}
        assert {*public, "__name__"} <= {*seen}
        assert {*public} <= {*names}
        assert len({*public} & files) >= 2
        assert not {*public} & {"lazy", "annotations", "TYPE_CHECKING", "_MODULES"}


def test_the_names_are_those_of_the_table_and_of_own_submodules():
    assert {"make_step", "TrainConfig", "schedules", "PhaseTimer"} <= set(dir(training))
    assert {"EncoderDecoderConfig", "EncoderDecoder", "presets"} <= set(models.__all__)
    assert "lazy" not in training.__all__
    assert {"TranslationConfig", "TASK", "Translator"} <= set(translation.__all__)


@pytest.mark.parametrize("package", [decoding, functional, masks, modules, sharding], ids=lambda x: x.__name__)
def test_help_shows_every_public_name(package):
    """`help` showed none of them, because it omits what a package without ``__all__`` imports."""
    names = re.findall(r" as (\w+)$", pathlib.Path(package.__file__).read_text(encoding="utf-8"), re.MULTILINE)
    names = {name for name in names if not inspect.ismodule(getattr(package, name))}
    assert names == {*package.__all__}
    text = pydoc.render_doc(package, renderer=pydoc.plaintext)
    functions = [name for name in names if inspect.isfunction(getattr(package, name))]
    assert len(functions) > 1
    assert all(re.search(rf"^ +{name}[( ]", text, re.MULTILINE) for name in functions)
