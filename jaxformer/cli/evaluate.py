"""The command ``evaluate``: scores, and the files that hold them."""

from __future__ import annotations

import dataclasses
import json
import pathlib
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from jaxformer.cli.command import File, Folder, Page, Run, command, option, refuse
from jaxformer.cli.output import as_dict, as_indented_json, as_json, save_besides, shown
from jaxformer.cli.predictors import EnsembleOptions, configured, directed, load, load_ensemble
from jaxformer.config import flat, kind_of, to_data
from jaxformer.digests import short_digest
from jaxformer.files import write_text

if TYPE_CHECKING:
    from jaxformer.tasks.base import Predictor
    from jaxformer.tasks.config import TaskConfig
    from jaxformer.tasks.reports import Scored

LONGEST_CHANGES = 120
"""The maximum number of characters; a whole file name may have 255."""


@dataclasses.dataclass(frozen=True)
class Evaluate(EnsembleOptions):
    """Scores a run: translations by BLEU and chrF, captions by BLEU, text by its perplexity, classes by accuracy.

    examples:
      jaxformer evaluate runs/demo
      jaxformer evaluate runs/en-de --checkpoint average --decode.search.beam_size 5
      jaxformer evaluate runs/en-de --split validation --checkpoint last
      jaxformer evaluate bart --files articles.txt summaries.txt --decode.rouge  # also ROUGE-1, ROUGE-2 and ROUGE-L
      jaxformer evaluate runs/one --ensemble runs/two runs/three  # an ensemble
      jaxformer evaluate runs/en-de --files test_2017.en test_2017.de
      jaxformer evaluate runs/demo --report page.html --against runs/other  # a page for the browser
      jaxformer evaluate runs/demo --json | jq '."unseen sentences"[0].value'
    """

    mesh: str = option(
        "The device mesh; default: all devices share translation and captioning; each computes all of any other task.",
        "",
    )
    split: Literal["test", "validation"] | None = option("The data; default: test, or what the task holds out.")
    files: tuple[File, ...] = option(
        "Other test data for a translator: sentences and their translations, line by line, or one table.", ()
    )
    to: str = option("The language of the translations in --files, for a run of several.", "")
    from_: str = option("The language of the sentences in --files, for a run whose sources begin with its token.", "")
    data_dir: Folder | None = option("The folder of the corpora, if it has moved.")
    json: bool = option("Print what the file of scores holds, as JSON.", False)
    report: Page | None = option(
        "Write a page (.html): scores with intervals, by length and corpus, the worst and best examples with their "
        "attention, and the training."
    )
    against: Run | None = option("Another run, scored in the same way, to compare with on the page of --report.")


@command
def evaluate(args: Evaluate, settings: list[str]) -> int:
    """Prints the scores of a run and saves them in it; scores of another search are saved in a separate file."""
    refuse(
        (args.files and (args.split or args.data_dir), "--files names the data: --split and --data-dir have no effect"),
        ((args.to or args.from_) and not args.files, "--to and --from are for --files: a run is scored by direction"),
        (args.against and not args.report, "--against is for a page; add --report FILE"),
    )
    config = configured(args, settings)
    from jaxformer.multihost import cluster, processes
    from jaxformer.tasks import own_attention, registry

    num_processes = cluster.initialize().num_processes
    if not args.files:
        _check_data(args.run, (*args.ensemble, *([args.against] if args.against else [])))
    if args.report:
        refuse((num_processes > 1, f"--report is made by one process, but there are {num_processes}"))
        _check_report(args)
    other = None
    if args.against:
        options = dataclasses.replace(args, run=args.against, ensemble=(), attention=None)
        other = options, configured(options, settings)
    predictor = directed(load_ensemble(args, config), args.to, args.from_)
    split = args.split or registry.task_of(config).default_split
    scored = _scored(args, args.run, predictor, split)
    if not processes.is_first():
        return 0
    examples = [
        {"corpus": name, "number": number, **row}
        for name, part in scored.rows.items()
        for number, row in enumerate(part, 1)
    ]
    used: dict[str, object] = {"decode": to_data(getattr(config, "decode", None)), "checkpoint": args.checkpoint}
    used["ensemble"] = [str(run) for run in args.ensemble]
    if args.files:
        used["files"] = [str(file) for file in args.files]
    direction = {name: code for name, code in (("to", args.to), ("from", args.from_)) if code}
    used |= direction
    if config.attention:
        used["attention"] = own_attention.load(config.attention).text
    about = {name: [as_dict(score) for score in values] for name, values in scored.scores.items()}
    about |= {"settings": used, "steps": list(predictor.steps)}
    if args.json:
        print(as_indented_json(about))
    else:
        for name, corpus_scores in scored.scores.items():
            print("\n  ".join(map(str, (name, *corpus_scores))))
    changes = _changes(config, configured(args, ())) + _attention(args)
    changes += "".join(f"-{name}={_shown(code)}" for name, code in direction.items())
    what = f"file-{_shown(args.files[0].name)}{_contents(examples)}" if args.files else split
    name = f"{what}-{args.checkpoint}{_ensemble(args.ensemble)}{changes}"
    if examples:
        lines = "".join(as_json(example) + "\n" for example in examples)
        save_besides(args.run / f"examples-{name}.jsonl", lambda path: write_text(path, lines))
    save_besides(args.run / f"scores-{name}.json", lambda path: write_text(path, as_indented_json(about) + "\n"))
    if args.report:
        _write_report(args, settings, predictor, scored, split=split, other=other)
    return 0


def _scored(args: Evaluate, run: pathlib.Path, predictor: Predictor, split: str) -> Scored:
    from jaxformer.cli import runtime
    from jaxformer.tasks import runner
    from jaxformer.tasks.reports import Scored

    rows: dict[str, Sequence[Mapping[str, Any]]] = {}
    data: dict[str, Any] = {"split": split, "data_dir": str(args.data_dir or "")}
    if args.files:
        data = {"files": args.files}
    scores = runner.evaluate(run, predictor, say=runtime.say, on_examples=rows.__setitem__, **data)
    return Scored(scores, rows)


def _check_report(args: Evaluate) -> None:
    """Checks that a report can be made, before a model is loaded."""
    from jaxformer.inspection import pages
    from jaxformer.tasks import reports, rundir

    assert args.report is not None
    pages.check_replaceable(args.report)
    if not args.files:
        rundir.check_trained(args.run)
    if args.against:
        reports.check_comparable(args.run, args.against)


def _write_report(
    args: Evaluate,
    settings: list[str],
    predictor: Predictor,
    scored: Scored,
    *,
    split: str,
    other: tuple[Evaluate, TaskConfig] | None,
) -> None:
    from jaxformer.inspection import pages
    from jaxformer.inspection.reports import page
    from jaxformer.tasks import reports

    assert args.report is not None
    config, theirs = configured(args, settings), None
    if other:
        options, of_other = other
        second = directed(load(options, of_other), args.to, args.from_)
        theirs = _scored(args, options.run, second, split)
    facts = {
        "run": str(args.run),
        "task": config.task,
        "checkpoint": args.checkpoint,
        "steps": ", ".join(map(str, predictor.steps)),
        "data": ", ".join(map(str, args.files)) or split,
        "search": " ".join(settings),
        "ensemble with": ", ".join(map(str, args.ensemble)),
        "compared with": str(args.against or ""),
    }
    facts = {name: shown(text) for name, text in facts.items() if text}
    report = reports.report(
        args.run,
        config,
        scored,
        facts=facts,
        commands=lambda corpus: _inspect_command(args, settings, config, corpus),
        other=theirs,
        other_name=facts.get("compared with", ""),
    )
    made = page(report, reports.look(config, predictor, report), title=facts["run"])
    path = pages.save(made, args.report)
    print(path, file=sys.stderr if args.json else sys.stdout)


def _inspect_command(args: Evaluate, settings: list[str], config: TaskConfig, corpus: str) -> str:
    """Returns the command that shows the attention of an example of a corpus, whose text follows."""
    words = ["jaxformer", "inspect", str(args.run), "--html", "attention.html", "--checkpoint", args.checkpoint]
    source, target = args.from_, args.to
    if config.task == "translation" and corpus in config.data.corpora:  # pyright: ignore[reportAttributeAccessIssue]
        source, target = config.data.languages(corpus)  # pyright: ignore[reportAttributeAccessIssue]
        source = source if config.data.tags == "both" else ""  # pyright: ignore[reportAttributeAccessIssue]
    for name, value in {"--attention": args.attention, "--to": target, "--from": source}.items():
        if value:
            words += [name, value]
    if config.task in ("translation", "captioning"):
        words += settings
    return shlex.join(words)


def _contents(examples: Sequence[Mapping[str, object]]) -> str:
    """Returns the part of a file's name that identifies test data, because files in two folders may have one name."""
    pairs = ([example.get(side) for side in ("source", "reference")] for example in examples)
    return f"-{short_digest(map(json.dumps, pairs))[:8]}"


def _ensemble(others: Sequence[pathlib.Path]) -> str:
    """Returns the part of a file's name that identifies an ensemble, such as "-ensemble-of-2-0a1b2c3d".

    The digest is computed from the paths of `others`, whose order does not affect results.
    """
    if not others:
        return ""
    paths = json.dumps(sorted(str(run.resolve()) for run in others))
    return f"-ensemble-of-{len(others) + 1}-{short_digest([paths])[:8]}"


def _changes(config: TaskConfig, trained: TaskConfig) -> str:
    """Returns the part of a file's name that identifies a search other than the run's own, such as "-beam_size=8".

    A value that cannot be part of a name, such as a path, is replaced by its digest, and so are too many changes; the
    file itself holds all settings. The batch size is left out, because it does not affect results.
    """
    decode, before = getattr(config, "decode", None), getattr(trained, "decode", None)
    if decode is None or before is None:
        return ""
    old, new = flat(to_data(before)), flat(to_data(decode))
    if type(decode.search) is not type(before.search):
        old |= flat({"search": to_data(type(decode.search)()) | {"kind": kind_of(before.search)}})
    changed = {
        name.rpartition(".")[2]: str(x) for name, x in new.items() if x != old.get(name) and name != "batch_size"
    }
    changes = "".join(f"-{name}={_shown(text)}" for name, text in changed.items())
    return changes if len(changes) <= LONGEST_CHANGES else f"-decode={short_digest([changes])}"


def _attention(args: Evaluate) -> str:
    """Returns the part of a file's name that identifies an attention other than the one that the run remembers."""
    from jaxformer.tasks import own_attention, own_files, registry

    if not args.attention:
        return ""
    attention = own_attention.load(args.attention).text
    if attention == registry.read_config(args.run).attention:
        return ""
    return f"-attention={own_files.parse(attention).digest}"


def _shown(text: str) -> str:
    """Returns a text if it can be part of a file's name, otherwise its digest."""
    return text if re.fullmatch(r"[a-zA-Z0-9_.+-]{1,30}", text) else short_digest([text])


def _check_data(run: pathlib.Path, others: Sequence[pathlib.Path]) -> None:
    """Checks that the runs of an ensemble hold the same data out of training; one that does not may have seen them."""
    from jaxformer.tasks import rundir

    hashes = rundir.read_optional_json(run / "provenance.json").get("data", {})
    held_out = {part: digest for part, digest in hashes.items() if part != "train"}
    for other in others:
        rundir.check_data(other, held_out)
