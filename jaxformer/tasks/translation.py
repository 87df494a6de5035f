"""Translation: from a configuration to a trained run, and from a run to a translator."""

from __future__ import annotations

import dataclasses
import functools
import pathlib
import time
from collections.abc import Iterator, Mapping

import jax
import numpy as np
from rich.console import Console

from jaxformer import models, sharding, training
from jaxformer.config import ConfigError, fingerprint
from jaxformer.data.batch import Batch
from jaxformer.data.batch_plan import BatchPlan, make_batch_plan, replan
from jaxformer.data.pipeline import Tokens, batches, prepare, prepare_tokenizer
from jaxformer.data.sources import DataError
from jaxformer.data.tokenizer import Tokenizer
from jaxformer.evaluation.scores import Score, bleu, chrf, moses_bleu
from jaxformer.models.costs import encoder_decoder_training_flops
from jaxformer.multihost import cluster, processes
from jaxformer.sharding import Placement
from jaxformer.tasks import rundir
from jaxformer.tasks.corpora import Corpora, load_corpora
from jaxformer.tasks.translation_config import DataConfig, TranslationConfig
from jaxformer.tasks.translation_model import Model, loss, make_model
from jaxformer.tasks.translator import Translator
from jaxformer.training.logging import JsonLog, TensorBoard
from jaxformer.training.progress import peak_flops, reporter


@dataclasses.dataclass(frozen=True)
class Prepared:
    """Everything that training needs, none of it on a device."""

    corpora: Corpora
    tokenizer: Tokenizer
    model: Model
    train: tuple[Tokens, BatchPlan]
    validation: tuple[Tokens, BatchPlan]


def train(config: TranslationConfig, out: pathlib.Path, *, console: Console) -> training.Result:
    """Trains into the run directory `out`, from where an earlier process of the same configuration left off.

    Of several processes each calls this with the same arguments, and the same `out` on shared storage.

    Raises:
      ConfigError: `out` belongs to another configuration, or to other data.
      ValueError: a mesh that does not fit the devices or the model.
      DataError: the data is not what it should be.
      CheckpointError: a checkpoint cannot be written or read.
    """
    _check_metric(config)
    placement = Placement(sharding.mesh(config.mesh))
    training.make_schedule(config.optimizer, steps=config.train.steps)  # refused before `out` is claimed
    resumed = rundir.check_run(out, config)
    corpora = load_corpora(config.data, seed=config.seed)  # before `out` is claimed: wrong data leaves nothing behind
    data = _hashes(corpora)
    # By which all processes have looked before one of them writes.
    found = {"training data": data["train"], "validation data": data["validation"], f"a run in {out}": str(resumed)}
    cluster.agree(found)
    if resumed:
        rundir.check_data(out, data)  # after it, so that all processes refuse together
    if processes.first() and not resumed:
        rundir.claim_run(out, "translation", config)
    prepared = prepare_run(config, corpora, out, placement, console=console)
    model, (tokens, plan) = prepared.model, prepared.train
    say = functools.partial(console.print, highlight=False, soft_wrap=True)
    step = model.step()
    abstract = model.abstract_state()
    patience = training.save_seconds(abstract)
    with training.Checkpoints(out / "checkpoints", keep_last=config.train.keep_last, timeout=patience) as checkpoints:
        restored = checkpoints.restore_latest(abstract) if resumed else None
        if restored is None:
            state, progress = model.new_state(), training.Progress()
        else:
            state, progress = restored[0], training.Progress(**restored[1]["progress"])
            say(f"resumed from step {int(state.step):,}")
        done = int(state.step)
        peak, source = peak_flops()
        size = models.costs.encoder_decoder_parameters(model.net.config)
        say(f"{size:,} parameters on {_described(model.placement)}; peak {peak / 1e12:.2f} TFLOP/s ({source})")
        outputs = training.Outputs(checkpoints)
        if processes.first():
            outputs.log = JsonLog(out / "log.jsonl", step=done)
            outputs.board = TensorBoard(out / "tensorboard", step=done) if config.train.tensorboard else None
            outputs.reporter = reporter(console, start=done, steps=config.train.steps)
            outputs.peak_flops = peak
        try:
            result = training.fit(
                step,
                state,
                lambda start: _on_devices(model, batches(tokens, plan, start=start, rows=model.rows)),
                config=config.train,
                maximize=config.train.metric == "bleu",
                validate=Validation(config, prepared),
                flops=functools.partial(_flops, model.net.config),
                outputs=outputs,
                progress=progress,
            )
        finally:
            for output in (outputs.log, outputs.board, outputs.reporter):
                if output is not None:
                    output.close()
    say(f"{result.reason} at step {int(result.state.step):,}; {result.programs} compiled training programs")
    return result


def prepare_run(
    config: TranslationConfig, corpora: Corpora, out: pathlib.Path, placement: Placement, *, console: Console
) -> Prepared:
    """Trains or loads the tokenizer, tokenizes, plans batches and shapes the model."""
    say = functools.partial(console.print, highlight=False, soft_wrap=True)
    say(f"training data: {corpora.train.report()}; validation: {corpora.validation.report()}")
    tokenizer = run_tokenizer(config.data, corpora, out)
    model = make_model(config, tokenizer.vocab_size, placement)
    began = time.perf_counter()
    tokens = prepare(
        corpora.train,
        tokenizer,
        config.data.cache,
        num_segmentations=config.data.num_segmentations,
        alpha=config.data.segmentation_alpha,
        seed=config.seed,
    )
    lengths = tokens.lengths()
    plan = make_batch_plan(
        *lengths,
        seed=config.seed,
        tokens_per_batch=config.data.tokens_per_batch,
        num_shapes=config.data.num_shapes,
        max_length=config.data.max_length,
        length_multiple=config.data.length_multiple,
    )
    _check_positions(model.net.config, max(shape[1] for shape in plan.shapes))
    held = prepare(corpora.validation, tokenizer, config.data.cache)
    validation = replan(plan, *held.lengths())
    if validation.steps_per_epoch == 0:
        raise DataError("no validation pair is as short as the longest training pair")
    shapes = ", ".join(f"{rows}x{source}" for rows, source, _ in plan.shapes)
    say(
        f"{tokenizer.vocab_size:,} pieces; {plan.steps_per_epoch:,} batches an epoch in shapes {shapes}, "
        f"{plan.fill(*lengths):.0%} full; {len(plan.skipped):,} pairs too long, "
        f"{len(validation.skipped):,} of validation ({time.perf_counter() - began:.1f} s)"
    )
    ways = placement.length_ways
    if whole := [shape[1] for shape in plan.shapes if shape[1] % ways]:
        say(
            f"outside attention, batches of lengths {', '.join(map(str, whole))} are not cut, for {ways} does not "
            f"divide them; with --data.length-multiple {ways} it does"
        )
    if processes.first():
        rundir.write_provenance(out, config=fingerprint(config), data=_hashes(corpora), tokenizer=tokenizer.fingerprint)
    return Prepared(corpora, tokenizer, model, (tokens, plan), (held, validation))


def _hashes(corpora: Corpora) -> dict[str, str]:
    return {"train": corpora.train.fingerprint, "validation": corpora.validation.fingerprint}


def _check_positions(model: models.EncoderDecoderConfig, longest: int) -> None:
    """Refuses, before anything is compiled, a batch that a table of learned positions cannot number."""
    if model.positions == "learned" and longest > model.max_positions:
        raise DataError(
            f"batches hold sentences of up to {longest} tokens, but model.max_positions is {model.max_positions}; "
            f"lower data.max_length to {model.max_positions} or raise model.max_positions"
        )


def run_tokenizer(config: DataConfig, corpora: Corpora, out: pathlib.Path) -> Tokenizer:
    """The run's tokenizer: the saved one, else one trained on both sides of the training data."""
    path = out / "tokenizer.model"
    if processes.first() and not path.exists():
        prepare_tokenizer(corpora.train, config.cache, vocab_size=config.vocab_size, kind=config.tokenizer).save(path)
    processes.wait("the tokenizer is saved")
    return Tokenizer.load(path)


class Validation:
    """Validation loss without smoothing, and BLEU of greedy translations where asked for.

    Of pairs as short as the longest of training: the others have no batch shape, and perhaps no positions.
    """

    def __init__(self, config: TranslationConfig, prepared: Prepared):
        self._config, self._prepared = config, prepared
        model = prepared.model
        within = model.placement.under(functools.partial(loss, model.net, 0.0, 0.0))
        self._loss = jax.jit(within, out_shardings=model.placement.replicated)

    def __call__(self, state: training.TrainState) -> Mapping[str, float]:
        params = training.best_params(state)
        model, (tokens, plan) = self._prepared.model, self._prepared.validation
        total = count = 0.0
        for batch in _on_devices(model, batches(tokens, plan, stop=plan.steps_per_epoch, rows=model.rows)):
            part_total, part_count, _ = jax.device_get(self._loss(params, batch, None))
            total, count = total + float(part_total), count + float(part_count)
        figures = {"loss": total / count}
        if number := self._config.train.validation_bleu:
            held = self._prepared.corpora.validation
            greedy = dataclasses.replace(self._config.decode, beam_size=1)
            translator = Translator(model.net, params, self._prepared.tokenizer, greedy, model.placement)
            chosen = np.setdiff1d(np.arange(len(held)), plan.skipped)[:number]  # the model may not number longer ones
            translations = translator.translate([held.source[i] for i in chosen])
            figures["bleu"] = bleu(translations, [held.target[i] for i in chosen]).value
        return figures


def load(run: pathlib.Path, *, checkpoint: str = "best", mesh: str = "") -> tuple[TranslationConfig, Translator]:
    """The translator of a run.

    Args:
      checkpoint: "best" (lowest validation loss), "last", "average" (see `average`), or a step.
      mesh: where to put it; by default a copy on every device, which share the sentences.

    Raises:
      ConfigError: `run` is no run of translation, or has no such checkpoint.
      CheckpointError: it has none yet, or a damaged one.
    """
    config, tokenizer, model = _saved(run, mesh)
    if checkpoint == "average":
        with training.Checkpoints(run / "average") as saved:
            found = saved.restore_latest(model.abstract_state().params)
            if found is None:
                raise training.CheckpointError(
                    f"{run} has no averaged parameters; make them with `jaxformer average {run}`"
                )
            params, steps = found[0], tuple(found[1].get("averaged", ()))
    else:
        with training.Checkpoints(run / "checkpoints", keep_last=config.train.keep_last) as saved:
            state, _ = saved.restore(_choose(saved, checkpoint), _without_moments(model.abstract_state()))
        params, steps = training.best_params(state), (int(state.step),)
    return config, Translator(model.net, params, tokenizer, config.decode, model.placement, steps)


def average(run: pathlib.Path, *, last: int, mesh: str = "") -> list[int]:
    """Averages the parameters of the last checkpoints (Vaswani et al. 2017, 6.1) into ``run/average``; the steps."""
    config, _, model = _saved(run, mesh)
    with training.Checkpoints(run / "checkpoints", keep_last=config.train.keep_last) as saved:
        steps = saved.steps()[-last:]
        params = saved.average(_without_moments(model.abstract_state()), steps)
    with training.Checkpoints(run / "average", keep_last=1, timeout=training.save_seconds(params)) as target:
        for old in target.steps():
            target.delete(old)
        target.save(steps[-1], params, {"averaged": steps})
    return steps


def _saved(run: pathlib.Path, mesh: str = "") -> tuple[TranslationConfig, Tokenizer, Model]:
    """What a run was made of, on the devices there are now."""
    _, config = rundir.read_config(run)
    tokenizer = Tokenizer.load(run / "tokenizer.model")
    return config, tokenizer, make_model(config, tokenizer.vocab_size, Placement(sharding.mesh(mesh)))


def _without_moments(state: training.TrainState) -> training.TrainState:
    """The shapes of a state, without those of the optimizer: two thirds of a checkpoint that need not be read."""
    return dataclasses.replace(state, optimizer=jax.tree.map(lambda _: ..., state.optimizer))


def evaluate(
    run: pathlib.Path, config: TranslationConfig, translator: Translator, *, split: str = "test", console: Console
) -> dict[str, list[Score]]:
    """Translates a split and scores it: BLEU, chrF, and lower-cased Moses BLEU; by the name of the corpus.

    Raises:
      ConfigError: the run was trained on other data; what would be held out of these, it may have learned from.
      DataError: the data is not what it should be.
    """
    corpora = load_corpora(config.data, seed=config.seed)
    rundir.check_data(run, _hashes(corpora))
    parts = {"validation": corpora.validation} if split == "validation" else corpora.tests
    if not all(map(len, parts.values())):
        raise DataError(f"no {split} data: the run's data.held_out is 0, and it names no files of them")
    found = {}
    for name, part in parts.items():
        began = time.perf_counter()
        translations = translator.translate(part.source)
        seconds = time.perf_counter() - began
        console.print(f"{name}: {len(part):,} sentences translated in {seconds:.1f} s", highlight=False)
        scores = [bleu(translations, part.target), chrf(translations, part.target)]
        scores.append(moses_bleu(translations, part.target, language=config.data.target_language))
        found[name] = scores
    return found


def _choose(saved: training.Checkpoints, checkpoint: str) -> int:
    steps = saved.steps()
    if not steps:
        raise training.CheckpointError(f"no checkpoint in {saved.directory} yet")
    if checkpoint == "last":
        return steps[-1]
    if checkpoint == "best":
        best = saved.best_step()
        return steps[-1] if best is None else best
    if checkpoint.isdecimal() and int(checkpoint) in steps:
        return int(checkpoint)
    raise ConfigError(f"no checkpoint {checkpoint!r}; there are best, last, average and steps {steps}")


def _on_devices(model: Model, stream: Iterator[Batch]) -> Iterator[Batch]:
    """Batches on the devices, one ahead of the one in use."""
    waiting = None
    for batch in stream:
        ready, waiting = waiting, model.placement.assemble(batch)
        if ready is not None:
            yield ready
    if waiting is not None:
        yield waiting


def _flops(config: models.EncoderDecoderConfig, batch: Batch) -> float:
    """Padded places count as work in utilization, since the devices compute them; only real tokens in tokens/s."""
    rows, source_length = batch.source.shape
    return encoder_decoder_training_flops(config, rows, source_length, batch.target.shape[1])


def _described(placement: Placement) -> str:
    """``"8 devices (data=4,tensor=2)"``."""
    sizes = ",".join(f"{name}={size}" for name, size in placement.mesh.shape.items())
    return "1 device" if placement.mesh.size == 1 else f"{placement.mesh.size} devices ({sizes})"


def _check_metric(config: TranslationConfig) -> None:
    if config.train.metric == "bleu" and not config.train.validation_bleu:
        raise ConfigError("train.metric is bleu, but train.validation_bleu is 0: no sentences are translated")
