"""One cell: a training by the library's own task, and the results of its model."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import jaxformer
from experiments import command
from experiments.recurrent_translation.grid import Cell, Scale
from experiments.recurrent_translation.measures import StepClock, trained_gradient_norms
from jaxformer import demo
from jaxformer.files import write_text
from jaxformer.inspection import attention_maps, plots
from jaxformer.tasks.translation import TranslationConfig, Translator, alignment
from jaxformer.training.logging import read_log

OWN = "A man in a blue shirt is playing the guitar. Two dogs are running through the snow."
"""Sentences such as those of Multi30k, joined; not from it."""
SENTENCES = {"tatoeba": ("I am a student.",), "tatoeba fr-en": ("Je suis étudiant.",), "multi30k": (OWN,)}
"""Sentences whose translations and maps are shown, beside those of `demo.EXAMPLES`."""


def run_cell(cell: Cell, config: TranslationConfig, out: pathlib.Path, scale: Scale, end: float) -> dict[str, Any]:
    """Trains a cell until the call ends, or resumes it, and returns its record.

    Raises:
      Stopped: the training did not reach its end.
    """
    run = out / "runs" / cell.name
    clock = StepClock(out / "clocks" / f"{cell.name}.json")
    seconds = command.train(config, run, end, hooks=[clock])
    log = read_log(run / "log.jsonl")
    curve = [(entry["step"], entry["validation_loss"]) for entry in log if "validation_loss" in entry]
    provenance = json.loads((run / "provenance.json").read_text())
    translator = jaxformer.load(run)
    assert isinstance(translator, Translator)
    return {
        "corpus": cell.corpus,
        "kind": cell.kind,
        "cell": "-" if cell.kind == "transformer" else cell.recurrent,
        "seed": cell.seed,
        "rate": config.optimizer.learning_rate,
        "steps": config.train.steps,
        "parameters": translator.net.num_parameters,
        "curve": curve,
        "loss": min(loss for _, loss in curve),
        "cpu seconds of a step": clock.median,
        "minutes": round(seconds / 60, 2),
        "date": provenance["starts"][-1]["date"],
        "commit": sorted({start["commit"] for start in provenance["starts"]}),
        "dirty": any(start["dirty"] for start in provenance["starts"]),
        "versions": {"python": provenance["python"], **provenance["versions"]},
        **_results(cell, run, translator, out, scale),
    }


def _results(cell: Cell, run: pathlib.Path, translator: Translator, out: pathlib.Path, scale: Scale) -> dict[str, Any]:
    """Returns scores, translations of example sentences, alignment errors and gradients; draws maps."""
    rows: dict[str, Sequence[Mapping[str, Any]]] = {}
    scores = jaxformer.evaluate(run, translator, split="test", on_examples=rows.__setitem__, say=lambda text: None)
    write_text(out / "hypotheses" / f"{cell.name}.json", json.dumps(rows, ensure_ascii=False))
    results: dict[str, Any] = {"scores": {name: {s.name: s.value for s in some} for name, some in scores.items()}}
    pictures = out / "pictures"
    attends = cell.kind != "fixed"
    if cell.corpus == "grammar":
        pairs = [(pair.english, pair.french) for pair in demo.EXAMPLES]
        if attends:
            results |= _alignment(cell, translator, pictures / f"attention-{cell.name}.png", scale.test_pairs)
    else:
        pairs = [(text, "") for text in SENTENCES[cell.corpus]]
        if attends:
            pieces = translator.attention(pairs[0][0])
            layer, head = attention_maps.most_aligned(pieces)
            words = attention_maps.by_word(attention_maps.select(pieces, layer=layer, head=head))
            plots.save(plots.attention_map(words, title=_title(cell)), pictures / f"attention-{cell.name}.png")
    said = translator.translate([source for source, _ in pairs])
    results["translations"] = [
        {"source": source, "reference": target, "said": text}
        for (source, target), text in zip(pairs, said, strict=True)
    ]
    if cell.kind != "transformer":
        sentences = [row["source"] for some in rows.values() for row in some]
        results["gradients"] = trained_gradient_norms(translator, sentences, scale.distances)
    return results


def _alignment(cell: Cell, translator: Translator, picture: pathlib.Path, number: int) -> dict[str, Any]:
    """Returns alignment error rates of the head that is best on validation pairs, and draws an example sentence.

    The map is that of the reference, so that those of all models have the same words.
    """
    splits = demo.splits()
    rates = alignment.head_error_rates(translator, splits.validation[:number])
    head = min(rates, key=rates.__getitem__)
    parts = {"unseen sentences": splits.seen[:number], "unseen combinations": splits.unseen[:number]}
    example = demo.EXAMPLES[0]
    (pieces,) = alignment.word_attention(translator, [example.english], [example.french])
    words = attention_maps.select(pieces, layer=head[0], head=head[1])
    plots.save(plots.attention_map(words, title=f"{cell.kind}: {alignment.describe(head)}"), picture)
    return {
        "head": alignment.describe(head),
        "aer": {name: alignment.head_error_rates(translator, pairs)[head] for name, pairs in parts.items()},
        "diagonal": {name: alignment.diagonal_error_rate(pairs) for name, pairs in parts.items()},
    }


def _title(cell: Cell) -> str:
    return f"{cell.corpus}, {cell.kind}, its own translation"
