"""Validation: the loss of a state on held-out data, and other metrics of its task."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax

from jaxformer import training
from jaxformer.tasks.base import Corpus, Data, InTurn, Trained, sum_losses
from jaxformer.tasks.config import TaskConfig
from jaxformer.tasks.registry import AnyTask
from jaxformer.tasks.training_setup import TrainingSetup


class Validation:
    """The validation loss of a state, and the other metrics of its task.

    With several corpora, the loss is the mean of theirs, which are metrics, too.
    """

    def __init__(self, task: AnyTask, config: TaskConfig, corpus: Corpus, data: Data[Any], setup: TrainingSetup):
        self._task, self._config, self._corpus, self._data, self._setup = task, config, corpus, data, setup
        placement = setup.placement
        self._loss = jax.jit(
            placement.with_axis_rules(setup.network.validation_sums), out_shardings=placement.replicated
        )

    def __call__(self, state: training.TrainState) -> Mapping[str, float]:
        params, setup = training.best_params(state), self._setup
        several = self._data.validation.parts if isinstance(self._data.validation, InTurn) else {}
        losses, sums = dict[str, float](), dict[str, Any]()
        for name in several or [""]:
            batches = setup.on_devices(self._data.validation_batches(setup.rows, name))
            sums = sum_losses(self._loss(params, batch) for batch in batches)
            losses[f"loss/{name}"] = float(sums["loss"] / sums["count"])
        trained = Trained(setup.network.net, params, setup.placement, (int(state.step),))
        predictor = self._task.predictor(self._config, self._data.vocabulary, trained)
        metrics = self._task.measure(self._config, self._corpus, self._data, predictor, sums)
        loss = sum(losses.values()) / len(losses)
        by_corpus = losses if several else {}
        return {name: float(value) for name, value in {"loss": loss, **by_corpus, **metrics}.items()}
