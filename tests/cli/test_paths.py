"""A bucket's address is refused wherever a run directory or an output is named."""

import pathlib

import pytest

from jaxformer.cli.main import main
from jaxformer.cli.paths import local_path


@pytest.mark.parametrize(
    "command",
    [
        "train demo --out gs://bucket/run",
        "demo --out gs://bucket/run",
        "evaluate gs://bucket/run",
        "average gs://bucket/run",
        "translate gs://bucket/run text",
        "translate run text --out gs://bucket/run",
        "inspect gs://bucket/run --source text",
        "inspect run --source text --out gs://bucket/run",
        "data grammar --out gs://bucket/run",
    ],
)
def test_an_address_is_no_path(command, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match="2"):
        main(command.split())
    assert "'gs://bucket/run' is no path: mount the bucket first" in capsys.readouterr().err.splitlines()[-1]
    assert not list(tmp_path.iterdir())


def test_a_path_is_a_path():
    assert local_path("runs/a:b") == pathlib.Path("runs/a:b")
