"""Hooks for trackers of experiments, with the real libraries, offline."""

import pytest

from jaxformer import training
from tests.training.small import fit, new_state

pytestmark = [
    pytest.mark.parity,
    # The libraries warn of their own dependencies, and leave files to the garbage collector.
    pytest.mark.filterwarnings("ignore"),
]
OPTIONS = {"validate": lambda state: {"loss": 1.5}, "config": {"validate_every": 4}}


def test_weights_and_biases(tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb", reason="wandb is not installed: pip install 'jaxformer[wandb]'")
    seen = []
    real = wandb.Run.log
    monkeypatch.setattr(wandb.Run, "log", lambda run, data, step: (seen.append((step, data)), real(run, data, step))[1])
    hook = training.WandbHook(every=2, project="p", mode="offline", dir=str(tmp_path))
    fit(new_state(), 4, hooks=[hook], **OPTIONS)
    assert [step for step, _ in seen] == [2, 4, 4]
    assert seen[-1][1] == {"validation/loss": 1.5}
    (file,) = tmp_path.rglob("*.wandb")
    assert all(name in file.read_bytes() for name in (b"train/gradient_norm", b"best/loss", b"ended", b"last_step"))


def test_mlflow(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # a folder, without the database of the full package
    mlflow = pytest.importorskip("mlflow", reason="mlflow is not installed: pip install 'jaxformer[mlflow]'")
    hook = training.MlflowHook(every=2, tracking_uri=(tmp_path / "mlruns").as_uri())
    fit(new_state(), 4, hooks=[hook], **OPTIONS)
    client = mlflow.MlflowClient()
    history = client.get_metric_history(hook.identifier, "train/loss")
    assert [metric.step for metric in history] == [2, 4]
    run = client.get_run(hook.identifier)
    assert (run.info.status, run.data.tags["ended"], run.data.metrics["validation/loss"]) == ("FINISHED", "done", 1.5)
