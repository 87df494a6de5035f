"""The commands that are written down, in launch/README.md and at the head of its files."""

import re

import pytest

from jaxformer.tasks.registry import resolve
from tests.launch import programs

FILES = ["README.md", "supervise.py", "local.py", "render.py", "slurm/train.sbatch", "tpu_vm/train.py", "../README.md"]


@pytest.mark.parametrize("file", FILES)
def test_every_configuration_that_is_named_is_there(file, monkeypatch):
    monkeypatch.chdir(programs.ROOT)
    text = (programs.LAUNCH / file).read_text(encoding="utf-8")
    text = re.sub(r"\s*\\+\n[#\s]*", " ", text)  # a command goes on where a backslash ends its line
    names = {name for name in re.findall(r"(?:train|plan|[.]sbatch|--) (\S+) --", text) if not name.isupper()}
    assert names
    for name in names:
        resolve(name)
