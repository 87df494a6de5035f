"""Parameters of a run: the errors if it has no parameters. tests/tasks/test_runner.py reads them."""

import pathlib

from jaxformer.tasks import restore


def test_the_command_that_makes_an_average_can_be_pasted():
    assert "run `jaxformer average 'my run'` first" in str(restore.no_average(pathlib.Path("my run")))
