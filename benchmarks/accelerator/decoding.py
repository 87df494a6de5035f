"""Part 5: search in bfloat16: of a test set with the model of part 4, and of forced lengths with the base model.

Forced lengths forbid the end of a sentence, so that the work does not depend on what a model has learned.
"""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

import jaxformer
from benchmarks.accelerator.attention import seconds
from benchmarks.accelerator.quality import TRANSLATION, data_of, is_trained, run_of
from benchmarks.accelerator.record import Case, Settings, Unfinished, aligned, number
from benchmarks.accelerator.training import configuration
from jaxformer import decoding, models, pure
from jaxformer.evaluation.scores import moses_bleu
from jaxformer.tasks.translation.translator import Translator

TITLE = "Part 5: decoding in bfloat16"
SOURCE = 32
"""Source tokens of forced lengths."""
BOS, EOS = 1, 2


def cases(settings: Settings) -> list[Case]:
    """Returns the searches; beam size 1 is greedy."""
    batches = (4,) if settings.tiny else (256, 1024, 64)
    lengths = (5,) if settings.tiny else (64, 256)
    beams = (1, 4)
    test = [
        Case(f"test_2016 beam {beam} batch {batch}", functools.partial(_test, beam, batch), 30)
        for batch in batches
        for beam in beams
    ]
    forced = [
        Case(f"length {length} beam {beam} batch {batch}", functools.partial(_forced, length, beam, batch), 30)
        for length in lengths
        for batch in batches
        for beam in beams
    ]
    return forced[: len(test)] + test + forced[len(test) :]


def _test(beam: int, batch: int, settings: Settings) -> Mapping[str, Any]:
    run, folder = run_of(TRANSLATION, settings), data_of(TRANSLATION, settings)
    if not is_trained(run):
        raise Unfinished("part 4 must train its model first")
    checkpoint = "average" if (run / "average").is_dir() else "best"
    found = jaxformer.load(run, checkpoint=checkpoint, decode={"search": {"beam_size": beam}, "batch_size": batch})
    assert isinstance(found, Translator)
    config = dataclasses.replace(found.net.config, compute_dtype="bfloat16")
    translator = dataclasses.replace(found, net=pure(models.EncoderDecoder, config))
    source, target = ((folder / f"multi30k/test_2016.{side}").read_text("utf-8").splitlines() for side in ("en", "de"))
    began = time.perf_counter()
    translator.translate(source)
    first = time.perf_counter() - began
    began = time.perf_counter()
    translations = translator.candidates(source)
    each = time.perf_counter() - began
    tokens = sum(len(best[0].tokens) + 1 for best in translations)
    bleu = moses_bleu([best[0].text for best in translations], target, language="de")
    rates = {"sentences per second": len(source) / each, "tokens per second": tokens / each}
    return {"seconds": each, "first": first, **rates, "bleu": bleu.value, "checkpoint": checkpoint}


def _forced(length: int, beam: int, batch: int, settings: Settings) -> Mapping[str, Any]:
    config = configuration("base", tiny=settings.tiny)
    size = config.data.vocab_size  # type: ignore[attr-defined]
    model = dataclasses.replace(config.model, source_vocab_size=size, target_vocab_size=size)  # type: ignore[attr-defined]
    net = pure(models.EncoderDecoder, model)
    params = jax.jit(net.init)(jax.random.key(0))
    source = np.random.default_rng(0).integers(4, size, (batch, 4 if settings.tiny else SOURCE)).astype(np.int32)

    @jax.jit
    def search(params: Any, source: jax.Array) -> decoding.Hypotheses:
        bound = net.bind(params)
        memory = bound.encode(source)
        context, state = bound.start(memory, beam_size=beam, length=length)
        return decoding.beam_search(
            decoding.ContextStep(bound.step, context),
            state,
            decoding.Limits(max_length=length, bos=BOS, eos=EOS),
            beam_size=beam,
            transforms=[decoding.min_length(length, eos=EOS)],
        )

    began = time.perf_counter()
    lengths = np.asarray(search(params, source).lengths[:, 0])
    first = time.perf_counter() - began
    if not (lengths == length).all():
        raise RuntimeError(f"every sentence must have {length} tokens, got {lengths.min()} to {lengths.max()}")
    each = seconds(lambda: search(params, source), jax.block_until_ready, rounds=3)
    rates = {"sentences per second": batch / each, "tokens per second": batch * length / each}
    return {"seconds": each, "first": first, **rates, "step": each / length}


def table(results: Mapping[str, Any]) -> str:
    """Returns the time and the rates of each search."""
    heading = ("search", "s", "sentences/s", "tokens/s", "ms a step", "first call s", "BLEU")
    rows: list[tuple[object, ...]] = [heading]
    for name, result in results.items():
        rows.append(
            (
                name,
                number(result["seconds"], ".3f"),
                number(result["sentences per second"], ",.0f"),
                number(result["tokens per second"], ",.0f"),
                number(result.get("step"), ".2f", factor=1e3),
                number(result["first"], ".1f"),
                number(result.get("bleu"), ".2f"),
            )
        )
    return aligned(rows)
