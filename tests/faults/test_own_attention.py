"""An attention of the user's own on several hosts, and in a plan for hardware that is not here."""

import sys

import pytest

from jaxformer.cli.main import main
from tests.faults.hosts import Run, losses

pytestmark = [pytest.mark.faults, pytest.mark.timeout(1800)]
STEPS = 22

FILE = """from flax import nnx
from jaxformer import functional as F
import jax.numpy as jnp

class Sharpened(nnx.Module):
    def __init__(self):
        self.factors = nnx.Param(jnp.full((4,), 2.0), axes=("heads",))

    def __call__(self, query, key, value, *, mask=None):
        return F.attention(query * self.factors[None, None, :, None], key, value, mask=mask)

attend = Sharpened()
"""
SETTINGS = "--model.num-heads", "4", "--attention", "mine.py:attend"
"""Settings of a model whose attention has a parameter for each head."""
ELSEWHERE = """
import os, sys
from jaxformer.cli import main
sys.argv[0] = "jaxformer"
i = sys.argv.index("--out") + 1
sys.argv[i] = os.path.abspath(sys.argv[i])
os.chdir(os.environ["HERE"])
sys.exit(main.main())
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("own")
    for name, text in (("", FILE), ("same", FILE), ("other", FILE.replace("2.0", "3.0")), ("none", "")):
        (folder / name).mkdir(exist_ok=True)
        if text:
            (folder / name / "mine.py").write_text(text)
    return folder


@pytest.fixture(scope="module")
def alone(folder):
    """The losses of one process with the same number of devices."""
    Run(folder, "alone", hosts=1, devices=4, steps=STEPS, settings=SETTINGS).finish(900)
    return losses(folder, "alone")


@pytest.mark.parametrize("mesh", ["data=4", "data=2,tensor=2"])
def test_two_hosts_train_like_one(folder, alone, mesh):
    """Also if the parameters of the attention are sharded."""
    Run(folder, mesh[:6], steps=STEPS, mesh=mesh, settings=SETTINGS).finish(900)
    two = losses(folder, mesh[:6])
    assert [step for step, _ in two] == list(range(1, STEPS + 1))
    assert [loss for _, loss in two] == pytest.approx([loss for _, loss in alone], rel=1e-5)


@pytest.mark.parametrize(
    ("there", "messages"),
    [
        ("other", ["attention of process 1", "attention of process 1"]),
        ("none", ["another process cannot load the attention: see its message", "no attention file "]),
    ],
)
def test_one_host_has_another_file_or_none(folder, there, messages):
    """All end with a code that is not retried, before anything is written."""
    variables = {rank: {"HERE": str(folder / name)} for rank, name in enumerate(("same", there))}
    run = Run(folder, f"on-{there}", program=[sys.executable, "-c", ELSEWHERE], settings=SETTINGS, variables=variables)
    assert run.codes() == [2, 2]
    for rank, message in enumerate(messages):
        assert message in run.said(rank).splitlines()[-1]
        assert "Traceback" not in run.said(rank)
    assert not run.out.exists()


@pytest.mark.timeout(900)
def test_a_plan_for_a_slice_of_tpus(folder, monkeypatch, capsys):
    """The parameters of the attention are counted and sharded."""
    pytest.importorskip("libtpu", reason="no libtpu, which compiles for TPUs without one")
    monkeypatch.chdir(folder)
    sizes = "--model.num-encoder-layers 1 --model.num-decoder-layers 1 --model.d_model 64 --model.d_ff 128".split()
    words = ["plan", "translation", "--topology", "v5e:2x4", "--mesh", "data=2,tensor=4", "--batch", "64x32", *sizes]
    words += ["--model.num-heads", "4", "--data.source", "a", "--data.target", "b"]
    assert main(words) == 0
    plain = capsys.readouterr().out
    assert main([*words, "--attention", "mine.py:attend"]) == 0
    with_own = capsys.readouterr().out
    assert parameters(with_own) == parameters(plain) + 2 * 4  # those of a layer share a copy


def parameters(report):
    return int(report.partition(": ")[2].partition(" parameters")[0].replace(",", ""))
