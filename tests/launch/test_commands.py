"""The commands of launch/README.md and of the docstrings of its files."""

import re

import pytest

from jaxformer.tasks.registry import resolve
from tests.launch import programs

FILES = ["README.md", "supervise.py", "local.py", "render.py", "slurm/train.sbatch", "tpu_vm/train.py", "../README.md"]


@pytest.mark.parametrize("file", FILES)
def test_every_named_configuration_exists(file, monkeypatch):
    monkeypatch.chdir(programs.ROOT)
    text = (programs.LAUNCH / file).read_text(encoding="utf-8")
    text = re.sub(r"\s*\\+\n[#\s]*", " ", text)  # a backslash at the end of a line continues the command
    names = re.findall(r"(?:(?<![.])train|plan|[.]sbatch|--) (\S+) --", text)
    names = {name for name in names if not name.isupper() and not name.endswith(".json")}  # not that of a run
    assert names
    for name in names:
        resolve(name)
