"""Errors for users: their exit codes, and the nearest name."""

import importlib

import pytest

from jaxformer.errors import ConfigError, DataError, JaxformerError, did_you_mean


def test_every_error_for_users_has_an_exit_code():
    """Imported or not, each is a `JaxformerError`, whose code the command line returns."""
    for module in ("data.fetch", "training.checkpoint", "training.recorder", "multihost.cluster"):
        importlib.import_module(f"jaxformer.{module}")
    codes = {
        kind.__name__: kind.exit_code for kind in JaxformerError.__subclasses__() if "jaxformer" in kind.__module__
    }
    assert {"ConfigError": 2, "DataError": 2, "CheckpointError": 1, "DistributedError": 1}.items() <= codes.items()


@pytest.mark.parametrize("kind", [ConfigError, DataError])
def test_wrong_input_is_also_a_value_error(kind):
    """So `except ValueError` in a notebook catches it, and a dataclass may raise it."""
    assert issubclass(kind, ValueError)
    assert issubclass(kind, JaxformerError)


@pytest.mark.parametrize(
    ("word", "names", "expected"),
    [
        ("multi3k", ["wmt14", "multi30k"], "; did you mean 'multi30k'?"),
        ("x", ["wmt14", "multi30k"], "; there are multi30k, wmt14"),
        ("tests", ("test", "text"), "; did you mean 'test'?"),
    ],
)
def test_the_nearest_name_or_all(word, names, expected):
    assert did_you_mean(word, names) == expected
    assert did_you_mean(word, iter(names)) == expected
