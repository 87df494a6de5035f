"""Packages whose names are imported when they are first used."""

import importlib
import pathlib

import pytest

from jaxformer import lazy, models, training
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
    get = lazy.members("jaxformer.training", {"step": "make_step", "schedules": ""})
    assert get("make_step") is training.make_step
    assert vars(training)["make_step"] is training.make_step
    assert get("schedules") is importlib.import_module("jaxformer.training.schedules")
    with pytest.raises(AttributeError, match=r"module 'jaxformer\.training' has no attribute 'mkae_step'"):
        get("mkae_step")
