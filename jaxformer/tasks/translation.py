"""Translation: from a configuration to a trained run, and from a run to a translator."""

from __future__ import annotations

import dataclasses
import functools
import pathlib
import time
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np
from rich.console import Console

from jaxformer import models, training
from jaxformer.config import ConfigError, fingerprint
from jaxformer.data.batch import Batch
from jaxformer.data.pipeline import Tokens, batches, prepare, prepare_tokenizer
from jaxformer.data.plan import Plan, make_plan, replan
from jaxformer.data.sources import DataError
from jaxformer.data.tokenizer import Tokenizer
from jaxformer.evaluation.scores import Score, bleu, chrf, moses_bleu
from jaxformer.models.costs import encoder_decoder_training_flops
from jaxformer.modules.pure import Params, Pure, pure
from jaxformer.tasks import runs
from jaxformer.tasks.corpora import Corpora, load_corpora
from jaxformer.tasks.translation_config import DataConfig, TranslationConfig
from jaxformer.tasks.translator import Translator
from jaxformer.training.logging import JsonLog, TensorBoard
from jaxformer.training.progress import peak_flops, reporter


@dataclasses.dataclass(frozen=True)
class Prepared:
    """Everything that training needs, none of it on a device."""

    corpora: Corpora
    tokenizer: Tokenizer
    net: Pure
    train: tuple[Tokens, Plan]
    validation: tuple[Tokens, Plan]


def train(config: TranslationConfig, out: pathlib.Path, *, console: Console) -> training.Result:
    """Trains into the run directory `out`, from where an earlier process of the same configuration left off.

    Raises:
      ConfigError: `out` belongs to another configuration.
      DataError: the data is not what it should be.
      CheckpointError: a checkpoint cannot be written or read.
    """
    times = _times(config)
    resumed = runs.check_run(out, config)
    corpora = load_corpora(config.data, seed=config.seed)  # before `out` is claimed: wrong data leaves nothing behind
    runs.claim_run(out, "translation", config)
    prepared = prepare_run(config, corpora, out, console=console)
    net, (tokens, plan) = prepared.net, prepared.train
    say = functools.partial(console.print, highlight=False, soft_wrap=True)
    step = make_step(config, net)
    with training.Checkpoints(out / "checkpoints", keep_last=config.train.keep_last) as checkpoints:
        state, progress = new_state(config, net), training.Progress()
        restored = checkpoints.restore_latest(abstract(state)) if resumed else None
        if restored is not None:
            state, about = restored
            progress = training.Progress(**about["progress"])
            say(f"resumed from step {int(state.step):,}")
        done = int(state.step)
        peak, source = peak_flops()
        size = models.costs.encoder_decoder_parameters(net.config)
        say(f"{size:,} parameters; peak {peak / 1e12:.2f} TFLOP/s ({source})")
        outputs = training.Outputs(
            checkpoints,
            JsonLog(out / "log.jsonl", step=done),
            TensorBoard(out / "tensorboard", step=done) if config.train.tensorboard else None,
            reporter(console, start=done, steps=config.train.steps),
            peak,
        )
        try:
            result = training.fit(
                step,
                state,
                lambda start: _on_device(batches(tokens, plan, start=start)),
                plan=times,
                validate=Validation(config, prepared),
                work=functools.partial(_work, net.config),
                outputs=outputs,
                progress=progress,
            )
        finally:
            for output in (outputs.log, outputs.board, outputs.reporter):
                if output is not None:
                    output.close()
    say(f"{result.reason} at step {int(result.state.step):,}; {result.programs} compiled training programs")
    return result


def prepare_run(config: TranslationConfig, corpora: Corpora, out: pathlib.Path, *, console: Console) -> Prepared:
    """Trains or loads the tokeniser, tokenises, plans batches and shapes the model."""
    say = functools.partial(console.print, highlight=False, soft_wrap=True)
    say(f"training data: {corpora.train.report()}; validation: {corpora.validation.report()}")
    tokenizer = run_tokenizer(config.data, corpora, out)
    net = pure(models.EncoderDecoder, model_config(config, tokenizer))
    began = time.perf_counter()
    tokens = prepare(
        corpora.train,
        tokenizer,
        config.data.cache,
        variants=config.data.variants,
        alpha=config.data.variant_alpha,
        seed=config.seed,
    )
    lengths = tokens.lengths()
    plan = make_plan(
        *lengths,
        seed=config.seed,
        token_budget=config.data.token_budget,
        num_shapes=config.data.num_shapes,
        max_length=config.data.max_length,
    )
    _check_positions(net.config, max(shape[1] for shape in plan.shapes))
    held = prepare(corpora.validation, tokenizer, config.data.cache)
    validation = replan(plan, *held.lengths())
    if validation.steps_per_epoch == 0:
        raise DataError("no validation pair is as short as the longest training pair")
    shapes = ", ".join(f"{rows}x{source}" for rows, source, _ in plan.shapes)
    say(
        f"{tokenizer.vocab_size:,} pieces; {plan.steps_per_epoch:,} batches an epoch in shapes {shapes}, "
        f"{plan.fill(*lengths):.0%} full; {len(plan.skipped):,} pairs too long "
        f"({time.perf_counter() - began:.1f} s)"
    )
    data = {"train": corpora.train.fingerprint, "validation": corpora.validation.fingerprint}
    runs.write_provenance(out, config=fingerprint(config), data=data, tokenizer=tokenizer.fingerprint)
    return Prepared(corpora, tokenizer, net, (tokens, plan), (held, validation))


def _check_positions(model: models.EncoderDecoderConfig, longest: int) -> None:
    """Refuses, before anything is compiled, a batch that a table of learned positions cannot number."""
    if model.positions == "learned" and longest > model.max_length:
        raise DataError(
            f"batches hold sentences of up to {longest} tokens, but model.max_length is {model.max_length}; "
            f"lower data.max_length to {model.max_length} or raise model.max_length"
        )


def run_tokenizer(config: DataConfig, corpora: Corpora, out: pathlib.Path) -> Tokenizer:
    """The run's tokeniser: the saved one, else one trained on both sides of the training data."""
    path = out / "tokenizer.model"
    if not path.exists():
        prepare_tokenizer(corpora.train, config.cache, vocab_size=config.vocab_size, kind=config.tokenizer).save(path)
    return Tokenizer.load(path)


def model_config(config: TranslationConfig, tokenizer: Tokenizer) -> models.EncoderDecoderConfig:
    """The model's configuration with the vocabulary filled in.

    Raises:
      ConfigError: a vocabulary size was set, and it is not the tokeniser's.
    """
    size = tokenizer.vocab_size
    for name in ("source_vocab_size", "target_vocab_size"):
        wanted = getattr(config.model, name)
        if wanted not in (0, size):
            raise DataError(f"model.{name} is {wanted}, but the tokeniser has {size} pieces")
    return dataclasses.replace(config.model, source_vocab_size=size, target_vocab_size=size)


def make_step(config: TranslationConfig, net: Pure) -> training.step.Step:
    """The compiled training step: label-smoothed cross entropy of the next target token."""
    return training.make_step(
        functools.partial(_loss, net, config.train.label_smoothing, config.train.z_loss),
        training.make_optimizer(config.optimizer, steps=config.train.steps),
        accumulate=config.train.accumulate,
        nonfinite=config.train.nonfinite,
        ema_decay=config.train.ema_decay,
    )


def new_state(config: TranslationConfig, net: Pure) -> training.TrainState:
    """The state before the first step."""
    optimizer = training.make_optimizer(config.optimizer, steps=config.train.steps)
    return training.create(net.init, optimizer, jax.random.key(config.seed), average=config.train.ema_decay > 0)


def abstract(state: training.TrainState) -> training.TrainState:
    """Shapes, dtypes and placement: what a restored state must match."""
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), state)


class Validation:
    """Validation loss without smoothing, and BLEU of greedy translations where asked for."""

    def __init__(self, config: TranslationConfig, prepared: Prepared):
        self._config, self._prepared = config, prepared
        self._loss = jax.jit(functools.partial(_loss, prepared.net, 0.0, 0.0))

    def __call__(self, state: training.TrainState) -> Mapping[str, float]:
        params = training.best_params(state)
        tokens, plan = self._prepared.validation
        total = count = 0.0
        for batch in batches(tokens, plan, stop=plan.steps_per_epoch):
            part_total, part_count, _ = jax.device_get(self._loss(params, batch, None))
            total, count = total + float(part_total), count + float(part_count)
        figures = {"loss": total / count}
        if number := self._config.train.validation_bleu:
            held = self._prepared.corpora.validation
            greedy = dataclasses.replace(self._config.decode, width=1)
            translator = Translator(self._prepared.net, params, self._prepared.tokenizer, greedy)
            figures["bleu"] = bleu(translator.translate(held.source[:number]), held.target[:number]).value
        return figures


def load(run: pathlib.Path, *, checkpoint: str = "best") -> tuple[TranslationConfig, Translator]:
    """The translator of a run.

    Args:
      checkpoint: "best" (lowest validation loss), "last", "average" (see `average`), or a step.

    Raises:
      ConfigError: `run` is no run of translation.
      CheckpointError: no such checkpoint.
    """
    _, config = runs.read_config(run)
    tokenizer = Tokenizer.load(run / "tokenizer.model")
    net = pure(models.EncoderDecoder, model_config(config, tokenizer))
    if checkpoint == "average":
        with training.Checkpoints(run / "average") as saved:
            found = saved.restore_latest(net.shapes)
            if found is None:
                raise training.CheckpointError(
                    f"{run} has no averaged parameters; make them with `jaxformer average {run}`"
                )
            return config, Translator(net, found[0], tokenizer, config.decode)
    with training.Checkpoints(run / "checkpoints", keep_last=config.train.keep_last) as saved:
        step = _choose(saved, checkpoint)
        state, _ = saved.restore(step, _state_shapes(config, net))
    return config, Translator(net, training.best_params(state), tokenizer, config.decode)


def average(run: pathlib.Path, *, last: int) -> list[int]:
    """Averages the parameters of the last checkpoints (Vaswani et al. 2017, 6.1) into ``run/average``; the steps."""
    _, config = runs.read_config(run)
    tokenizer = Tokenizer.load(run / "tokenizer.model")
    net = pure(models.EncoderDecoder, model_config(config, tokenizer))
    with training.Checkpoints(run / "checkpoints", keep_last=config.train.keep_last) as saved:
        steps = saved.steps()[-last:]
        params = saved.average(_state_shapes(config, net), steps)
    with training.Checkpoints(run / "average", keep_last=1) as target:
        for old in target.steps():
            target.delete(old)
        target.save(steps[-1], params, {"averaged": steps})
    return steps


def evaluate(
    config: TranslationConfig, translator: Translator, *, split: str = "test", console: Console
) -> dict[str, list[Score]]:
    """Translates a split and scores it: BLEU, chrF, and lower-cased Moses BLEU; by the name of the corpus."""
    corpora = load_corpora(config.data, seed=config.seed)
    parts = {"validation": corpora.validation} if split == "validation" else corpora.tests
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
    if checkpoint.isdigit() and int(checkpoint) in steps:
        return int(checkpoint)
    raise training.CheckpointError(f"no checkpoint {checkpoint!r}; there are best, last, average and steps {steps}")


def _state_shapes(config: TranslationConfig, net: Pure) -> Any:
    shapes = jax.eval_shape(functools.partial(new_state, config, net))
    here = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=here), shapes)


def _loss(net: Pure, smoothing: float, z_loss: float, params: Params, batch: Batch, key: jax.Array | None):
    total, count = net.apply(
        params,
        batch.source,
        batch.target,
        batch.labels,
        source_valid=batch.source_valid,
        target_valid=batch.target_valid,
        smoothing=smoothing,
        z_loss=z_loss,
        key=key,
        method="cross_entropy",
    )
    return total, count, {}


def _on_device(stream: Iterator[Batch]) -> Iterator[Batch]:
    """Batches on the device, one ahead of the one in use."""
    waiting = jax.device_put(next(stream))
    for batch in stream:
        ready, waiting = waiting, jax.device_put(batch)
        yield ready


def _work(config: models.EncoderDecoderConfig, batch: Batch) -> training.Work:
    """Padded places count as work in utilisation, since the device computes them; only real tokens in tokens/s."""
    rows, source_length = batch.source.shape
    flops = encoder_decoder_training_flops(config, rows, source_length, batch.target.shape[1])
    return training.Work(int(np.asarray(batch.target_valid).sum()), flops)


def _times(config: TranslationConfig) -> training.Plan:
    train = config.train
    if train.metric == "bleu" and not train.validation_bleu:
        raise ConfigError("train.metric is bleu, but train.validation_bleu is 0: no sentences are translated")
    return training.Plan(
        steps=train.steps,
        validate_every=train.validate_every,
        checkpoint_every=train.checkpoint_every,
        log_every=train.log_every,
        patience=train.patience,
        metric=train.metric,
        higher_is_better=train.metric == "bleu",
        minutes=train.minutes,
        checkpoint_minutes=train.checkpoint_minutes,
    )
