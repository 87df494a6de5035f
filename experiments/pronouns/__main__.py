"""Measures where "it" and "they" look: attention on the antecedent by layer and head, and what masking a head changes.

    python -m experiments.pronouns --out runs/pronouns           # twelve minutes on two free cores; resumes
    python -m experiments.pronouns --smoke --out runs/smoke      # a tiny model; the results mean nothing

Translators of the built-in grammar are trained with three seeds, as by `jaxformer sweep demo --train.steps 1000 --out
runs`.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

import jaxformer
from experiments import command
from experiments.exposure.__main__ import TINY
from experiments.exposure.measures import margins
from experiments.exposure.probes import Contrast, it_as_object, it_as_subject
from experiments.pictures import plt, save, tidy
from experiments.tables import interval, table
from jaxformer import demo
from jaxformer.inspection.attention_maps import AttentionWeights, between_words
from jaxformer.tasks import sweep
from jaxformer.tasks.batched import padded
from jaxformer.tasks.config import TaskConfig
from jaxformer.tasks.translation import TranslationConfig, Translator
from jaxformer.tasks.translation.alignment import word_attention

PARTS = {"encoder.self": ("encoder", "attention"), "decoder.cross": ("decoder", "cross")}
"""The attentions, and where their parameters are."""


@dataclasses.dataclass(frozen=True)
class Scale:
    """The amount of work."""

    seeds: int
    steps: int
    fresh: int
    """New pairs of the grammar, in which pronouns are looked for."""


FULL, SMOKE = Scale(3, 1000, 6000), Scale(1, 3, 300)


@dataclasses.dataclass(frozen=True)
class Case:
    """A sentence with a pronoun, and the places of its words."""

    contrast: Contrast
    words: tuple[str, ...]
    pronoun: int
    antecedent: int
    others: tuple[int, ...]
    """The other nouns before the pronoun."""


def cases(pairs: Sequence[demo.Pair]) -> list[Case]:
    """Returns the sentences with an "it" or "they" that has a gender in French; the noun before the link is meant."""
    found = []
    for pair in pairs:
        contrast, words = it_as_object(pair) or it_as_subject(pair), demo.words(pair.english)
        pronouns = [i for i, word in enumerate(words) if i and word in ("it", "they")]
        if contrast is None or not pronouns:
            continue
        nouns = [i for i, tag in enumerate(pair.tags[: pronouns[-1]]) if tag == "NOUN"]
        link = max(i for i, word in enumerate(words[: pronouns[-1]]) if word in ("because", "but", "and"))
        *others, antecedent = [i for i in nouns if i < link]
        found.append(Case(contrast, words, pronouns[-1], antecedent, tuple(others)))
    return found


def self_attention(translator: Translator, sentences: Sequence[tuple[str, tuple[str, ...]]]) -> Iterator[np.ndarray]:
    """Yields the weights of the encoder between the words of each sentence, ``[layers, heads, words, words]``."""
    tokenizer = translator.tokenizer
    for begin in range(0, len(sentences), 64):
        part = sentences[begin : begin + 64]
        rows = [np.append(ids, tokenizer.special.eos) for ids in tokenizer.encode([text for text, _ in part])]
        tokens = padded(rows, (64, 64), tokenizer.special.pad)
        found = np.asarray(_weights(translator.net, translator.params, tokens, tokenizer.special.bos))
        for (_, words), ids, weights in zip(part, rows, found, strict=False):
            pieces = (*tokenizer.pieces(ids[:-1].tolist()), "</s>")
            words = tokenizer.normalizer.spelled(words, "source")
            maps = AttentionWeights(pieces, pieces, weights[:, :, : len(ids), : len(ids)])
            yield between_words(maps, words, words).weights


@functools.partial(jax.jit, static_argnums=(0, 3))
def _weights(net: Any, params: Any, source: Any, bos: int) -> jax.Array:
    """Returns the weights ``[B, layers, heads, T, S]``."""
    begin = jax.numpy.full((source.ids.shape[0], 1), bos)
    found = net.bind(params).captured(source, begin, names=["encoder.self"])
    return jax.numpy.moveaxis(found["encoder.self"].weights(), 1, 0)


def masked(params: Any, part: str, layer: int, head: int) -> Any:
    """Returns parameters with which a head has no output."""
    place = (PARTS[part][0], "stack", "layers", PARTS[part][1], "output", "kernel")

    def zero(path: Any, x: Any) -> Any:
        return x.at[layer, head].set(0) if tuple(key.key for key in path) == place else x

    return jax.tree_util.tree_map_with_path(zero, params)


def measure(path: pathlib.Path, scale: Scale, known: set[str]) -> dict[str, Any]:
    """Returns, for each head of a run, the share of its weight on the antecedent and what masking it changes.

    The weights are those of the pronoun's row in the encoder, and of the step that chooses the French gender in the
    cross-attention. `others` is the mean weight on another noun before the pronoun; `words` that of a word.
    """
    translator = jaxformer.load(path)
    assert isinstance(translator, Translator)
    found = cases([pair for pair in demo.generate(scale.fresh, seed=1) if pair.english not in known])
    contrasts = [case.contrast for case in found]
    texts = [contrast.english for contrast in contrasts]
    crossed = word_attention(translator, texts, [contrast.right for contrast in contrasts])
    steps = [_deciding(contrast) for contrast in contrasts]
    encoded = self_attention(translator, [(case.contrast.english, case.words) for case in found])
    rows = {
        "encoder.self": [w[:, :, case.pronoun] for w, case in zip(encoded, found, strict=True)],
        "decoder.cross": [maps.weights[:, :, step] for maps, step in zip(crossed, steps, strict=True)],
    }
    heads = []
    for part, weights in rows.items():
        share = np.mean([w[:, :, case.antecedent] for w, case in zip(weights, found, strict=True)], 0)
        others = [w[:, :, i] for w, case in zip(weights, found, strict=True) for i in case.others]
        for layer, head in np.ndindex(*share.shape):
            without = dataclasses.replace(translator, params=masked(translator.params, part, layer, head))
            shares = {"share": float(share[layer, head]), "others": float(np.mean([w[layer, head] for w in others]))}
            heads.append({"part": part, "layer": layer, "head": head, **shares, **_accuracy(without, contrasts)})
    word = float(np.mean([1 / (len(case.words) + 1) for case in found]))
    return {"sentences": len(found), "words": word, **_accuracy(translator, contrasts), "heads": heads}


def _deciding(contrast: Contrast) -> int:
    """Returns the index of the first French word that differs from the wrong one."""
    sides = zip(demo.words(contrast.right), demo.words(contrast.wrong[0]), strict=False)
    return next(i for i, (right, wrong) in enumerate(sides) if right != wrong)


def _accuracy(translator: Translator, contrasts: Sequence[Contrast]) -> dict[str, float]:
    found = np.array(margins(translator, contrasts))
    return {"right": float((found > 0).mean()), "margin": float(found.mean())}


def strongest(record: Mapping[str, Any], part: str, layer: int) -> dict[str, Any]:
    """Returns the head of a layer with the largest share on the antecedent."""
    return max((x for x in record["heads"] if (x["part"], x["layer"]) == (part, layer)), key=lambda x: x["share"])


def tables(results: Mapping[str, Any]) -> str:
    """Returns the table of the strongest head of each layer."""
    records, percent = results["records"], lambda values: interval([100 * value for value in values])
    heading = ("head with the largest share", "on the antecedent, %", "on another noun, %", "right without it, %")
    rows: list[tuple[str, ...]] = [(*heading, "margin, nats")]
    for part in PARTS:
        for layer in sorted({x["layer"] for x in records[0]["heads"]}):
            best = [strongest(record, part, layer) for record in records]
            shown = (percent([x[name] for x in best]) for name in ("share", "others", "right"))
            rows.append((f"{part}, layer {layer}", *shown, interval([x["margin"] for x in best])))
    words, right, margin = ([record[name] for record in records] for name in ("words", "right", "margin"))
    word = percent(words)
    rows.append(("no head masked; the share of any word", word, word, percent(right), interval(margin)))
    return table(*rows)


def draw(results: Mapping[str, Any], path: pathlib.Path) -> None:
    """Draws each head: its share on the antecedent, and the sentences that are right without it."""
    figure, panels = plt.subplots(1, 2, figsize=(9, 3.6), sharey=True, constrained_layout=True)
    for axes, part in zip(panels, PARTS, strict=True):
        for layer in sorted({x["layer"] for x in results["records"][0]["heads"]}):
            dots = [
                x for record in results["records"] for x in record["heads"] if (x["part"], x["layer"]) == (part, layer)
            ]
            shares, right = ([100 * x[name] for x in dots] for name in ("share", "right"))
            axes.scatter(shares, right, label=f"layer {layer}", alpha=0.7)
        axes.axvline(100 * np.mean([record["words"] for record in results["records"]]), color="gray", lw=0.8, ls=":")
        tidy(axes, title=part, xlabel="weight on the antecedent, % (dotted: any word)")
    panels[0].set_ylabel("right without this head, %")
    panels[0].legend(frameon=False)
    save(figure, path)


def run(options: argparse.Namespace) -> None:
    """Trains and measures what has no record, and writes ``results.json``, ``heads.png`` and ``report.md``.

    Raises:
      ConfigError: `--out` has records or runs of another amount of work.
      Stopped: a training was stopped.
    """
    scale, settings = (SMOKE, TINY) if options.smoke else (FULL, {"train": {"steps": FULL.steps}})

    def configure(values: Mapping[str, str], path: pathlib.Path) -> TaskConfig:
        del path
        return jaxformer.configure("demo", **settings, seed=int(values["seed"]))

    trials = sweep.trials(options.out / "runs", {}, range(scale.seeds), configure)
    command.train_all(trials)
    config = trials[0].config
    assert isinstance(config, TranslationConfig)
    known = {pair.english for pair in demo.splits(num_train=config.data.grammar_pairs).train}
    places = [options.out / "records" / f"{trial.config.seed}.json" for trial in trials]
    records = [
        command.record(place, scale, functools.partial(measure, trial.path, scale, known))
        for place, trial in zip(places, trials, strict=True)
    ]
    results = {"facts": command.facts(), "scale": dataclasses.asdict(scale), "records": records}
    command.write_results(options.out / "results.json", results)
    draw(results, options.out / "heads.png")
    command.publish(options.out, tables(results))


def main(arguments: list[str] | None = None) -> int:
    parser = command.parser("pronouns", __doc__, out="the folder of runs, records, results.json and heads.png")
    return command.exit_code(run, parser.parse_args(arguments))


if __name__ == "__main__":
    command.script(main)
