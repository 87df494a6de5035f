"""The commands for runs as a whole: ``runs``, ``diff``, ``compare``, ``replay``, ``average`` and ``trim``."""

from __future__ import annotations

import dataclasses
import pathlib
import shlex
import sys
from typing import Annotated, Any

from jaxformer.cli.command import (
    REQUIRED,
    File,
    Folder,
    Options,
    OutputFolder,
    Picture,
    Run,
    Word,
    command,
    local_path,
    option,
    refuse,
    word,
)
from jaxformer.cli.output import as_dict, as_indented_json, as_json, shown
from jaxformer.cli.predictors import OneRun


@dataclasses.dataclass(frozen=True)
class Runs(Options):
    """Lists the runs below a folder: state (running, killed, done, ...), steps, losses, saved scores.

    examples:
      jaxformer runs runs
      jaxformer runs runs --json | jq -r 'select(.state == "killed") | .path'
    """

    folder: Folder = word("A folder of runs.")
    json: bool = option("Print one JSON object per line, nothing without runs.", False)


@command
def runs(args: Runs) -> int:
    """Lists runs with their state and their scores."""
    refuse((not args.folder.is_dir(), f"{args.folder} is not a folder"))
    from jaxformer.tasks.runs import find_runs

    listed = find_runs(args.folder)
    if args.json:
        for run in listed:
            facts = {"path": str(run.path), "task": run.task, "state": run.state, "step": run.step, "steps": run.steps}
            print(as_json(facts | {"results": run.results}))
        return 0
    if not listed:
        print(f"no runs below {args.folder}")
    for run in listed:
        print(shown(f"{run.path}  {run.task}  {run.state}  step {run.step:,}/{run.steps:,}"))
        for name, value in run.results.items():
            print(shown(f"    {name} {value:.4g}"))
    return 0


@dataclasses.dataclass(frozen=True)
class Diff(Options):
    """Shows how two runs differ: settings, versions, data and results. Exits with 1 if they differ. Translations of the
    same sentences are compared by paired bootstrap resampling.

    examples:
      jaxformer diff runs/a runs/b
      jaxformer diff runs/a runs/b --json | jq .settings
    """

    run: Run = word("A run directory.")
    other: Annotated[pathlib.Path, Word("OTHER", local_path)] = word("Another one.")
    json: bool = option("Print everything as JSON.", False)


@command
def diff(args: Diff) -> int:
    """Shows how two runs differ; returns 0 if settings, versions, data and results are the same, else 1."""
    from jaxformer.tasks.runs import comparisons, differences, read_run

    a, b = read_run(args.run), read_run(args.other)
    differing, compared = differences(a, b), comparisons(a, b)
    code = int(any(differing.values()))
    if args.json:
        rows = {section: {name: values for name, *values in rows} for section, rows in differing.items()}
        tests = {name: as_dict(comparison) for name, comparison in compared.items()}
        print(as_indented_json({**rows, "comparisons": tests}))
        return code
    for section, rows in differing.items():
        print(f"{section}:{' the same' * (not rows)}")
        for name, first, second in rows:
            print(shown(f"  {name}: {first} | {second}"))
    for name, comparison in compared.items():
        print(shown(f"{name}: {comparison} (paired bootstrap)"))
    return code


@dataclasses.dataclass(frozen=True)
class Compare(Options):
    """Compares groups of runs: those of a group differ only in the seed. Prints the mean of each result with its 95 %
    interval (Student's t); how far each group is from the first (t test), the difference that these seeds
    would find in 80 % of all cases, and how many seeds would find this one so; and for translations of the same
    sentences the interval over sentences and seeds together (bootstrap). The settings in which the groups differ name
    them.

    examples:
      jaxformer compare runs/sweep
      jaxformer compare runs/a-0 runs/a-1 runs/a-2 runs/b-0 runs/b-1 runs/b-2 --picture groups.png
      jaxformer compare runs/sweep --json | jq .differences
    """

    runs: tuple[Run, ...] = word("Runs, or folders of runs.", ())
    picture: Picture | None = option("Draw the groups to this file (PNG, SVG or PDF).", None)
    json: bool = option("Print everything as JSON.", False)


@command
def compare(args: Compare) -> int:
    """Compares groups of runs that differ only in the seed."""
    refuse((not args.runs, "RUN is missing"))
    from jaxformer.tasks import comparison

    found = comparison.groups(args.runs)
    rows = [group.row for group in found]
    texts = {comparison.described(group.settings): comparison.resampled(found[0], group) for group in found[1:]}
    if args.picture:
        comparison.draw(rows, args.picture)
    if args.json:
        sections: dict[str, dict[str, dict[str, Any]]] = {"differences": comparison.differences(rows), "texts": texts}
        plain = {
            name: {key: {part: dataclasses.asdict(x) for part, x in each.items()} for key, each in section.items()}
            for name, section in sections.items()
        }
        listed = [{"runs": list(map(str, group.runs.values())), **row} for group, row in zip(found, rows, strict=True)]
        print(as_indented_json({"groups": listed, **plain}))
        return 0
    for line in comparison.as_text(rows).splitlines():
        print(shown(line))
    for cell, compared in texts.items():
        for name, resampled in compared.items():
            print(shown(f"BLEU of {name}, {cell}: {resampled}"))
    if single := [comparison.described(group.settings) or "the group" for group in found if len(group.runs) == 1]:
        print(shown(f"one seed, which shows no spread: {'; '.join(single)}"), file=sys.stderr)
    return 0


@dataclasses.dataclass(frozen=True)
class Replay(OneRun):
    """Trains the first steps of a run again, and reports whether each loss is bitwise equal. Exits with 1 if one
    differs.

    examples:
      jaxformer replay runs/demo --steps 20
    """

    steps: int = option("The number of steps (default 10).", 10)


@command
def replay(args: Replay) -> int:
    """Trains the first steps of a run again; returns 0 if each loss is the logged one bit for bit, else 1."""
    from jaxformer.tasks.registry import read_config

    read_config(args.run)  # reports a mistyped name before JAX is imported
    from jaxformer.cli import runtime
    from jaxformer.tasks import replay as replaying

    runtime.start()
    same = 0
    for step in replaying.replay(args.run, steps=args.steps, attention=args.attention):
        same += step.same
        verdict = "the same" if step.same else f"IS NOT {step.logged!r}"
        print(f"step {step.step}: {step.loss!r} {verdict}", flush=True)
    print(f"{same} of {args.steps} losses equal the logged ones bit for bit")
    return int(same != args.steps)


@dataclasses.dataclass(frozen=True)
class Average(OneRun):
    """Averages the parameters of a run's last checkpoints (Vaswani et al. 2017, section 6.1).

    examples:
      jaxformer average runs/en-de --last 10
      jaxformer evaluate runs/en-de --checkpoint average
    """

    last: int = option("The number of checkpoints (default 5).", 5)
    mesh: str = option("The device mesh; default: a copy on every device.", "")


@command
def average(args: Average) -> int:
    """Averages checkpoints into the run's ``average`` folder."""
    from jaxformer.cli import runtime
    from jaxformer.tasks import restore, rundir

    runtime.start()
    steps = restore.average(args.run, last=args.last, mesh=args.mesh, attention=args.attention)
    fewer = f" (the run keeps fewer than {args.last} checkpoints)" * (len(steps) < args.last)
    s = "s" * (len(steps) != 1)
    numbers = ", ".join(map(str, steps))
    print(f"averaged {len(steps)} checkpoint{s}, step{s} {numbers}{fewer}; use it with --checkpoint average")
    saved = {path.name: rundir.read_json(path) for path in sorted(args.run.glob("scores-*-average*.json"))}
    # The name of a test set, or a setting of an ensemble, may also be "average".
    saved = {name: about for name, about in saved.items() if about.get("settings", {}).get("checkpoint") == "average"}
    if old := [name for name, about in saved.items() if about.get("steps") != list(steps)]:
        print(f"these scores are of an earlier average; evaluate again: {', '.join(old)}", file=sys.stderr)
    return 0


@dataclasses.dataclass(frozen=True)
class Trim(Options):
    """Makes a smaller run with the tokens that a corpus needs, and proves that it computes the same.

    examples:
      jaxformer trim runs/nllb --corpus my.en my.fr --out runs/nllb-en-fr --to fra_Latn
      jaxformer translate runs/nllb-en-fr "The house is old." --to fra_Latn
      jaxformer trim runs/gpt2 --corpus my.txt --out runs/gpt2-small
      jaxformer train runs/gpt2-small/config.json --init-from runs/gpt2-small --data.text my.txt --out mine

    The run is of any task with a vocabulary of texts, trained here or converted. Give a translator the text of both
    languages. Special tokens, languages, bytes and, without bytes, single characters stay, so that other text can
    still be spelled. Before the run is complete, all parameters are compared bit for bit, in the rows of the tokens
    that stay; then, for some lines of the corpus, the logits of kept tokens or classes, and greedy translations,
    continuations or captions of noise, guesses at masked tokens, classes or labels. The run has one set of parameters,
    like a converted model.
    """

    run: Run = word("A run directory.")
    corpus: tuple[File, ...] = option("The text files whose tokens stay.", ())
    out: OutputFolder = option("The run directory to create.", REQUIRED)
    checkpoint: str = option("The checkpoint: best (default), last, average, or a step.", "best")
    sentences: int = option("The most lines of the corpus that are compared.", 200)
    to: str = option("The target language of the comparison, for a translator of several.", "")
    from_: str = option("The language of its sources, for a translator whose sources begin with its token.", "")


@command
def trim(args: Trim) -> int:
    """Makes a run with a smaller vocabulary."""
    refuse((not args.corpus, "no corpus: give --corpus FILE ..."))
    from jaxformer.cli import runtime
    from jaxformer.tasks import trim as trimming

    runtime.start()
    options = {"checkpoint": args.checkpoint, "sentences": args.sentences, "say": runtime.say}
    options |= {"language": args.to, "source": args.from_}
    trimming.trim(args.run, args.out, corpus=args.corpus, **options)
    print(f"{args.out} is a run with a smaller vocabulary now; train with --init-from {shlex.quote(str(args.out))}")
    return 0
