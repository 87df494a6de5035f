"""The commands that train: ``train``, ``sweep`` and ``demo``."""

from __future__ import annotations

import contextlib
import dataclasses
import pathlib
import shlex
import sys
from typing import TYPE_CHECKING, Annotated, Any

from jaxformer.cli.command import (
    REQUIRED,
    Name,
    Options,
    OutputFolder,
    Positive,
    Run,
    Word,
    command,
    located,
    option,
    refuse,
    word,
)
from jaxformer.cli.output import as_indented_json, shown
from jaxformer.files import write_text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from jaxformer.demo import GrammarSplits
    from jaxformer.tasks import sweep as sweeping
    from jaxformer.tasks.config import TaskConfig
    from jaxformer.tasks.translation import Translator


@dataclasses.dataclass(frozen=True)
class Train(Options):
    """Trains a configuration in a run directory, or resumes the run in it.

    examples:
      jaxformer train demo --out runs/demo
      jaxformer train translation --data.source my.en --data.target my.fr --out run
      jaxformer train language_model --data.text my.txt --out run
      jaxformer train multi30k:en_de --data-dir /corpora --out runs/en-de --train.steps 8000
      jaxformer train experiments/translation/multi30k.py:de_en --out runs/de-en
      jaxformer train runs/en-de/config.json --seed 1 --out runs/en-de-1
      jaxformer train multi30k:en_de --init-from runs/demo:last --out runs/warm
      jaxformer train language_model:base --data.text my.txt --model.compute_dtype bfloat16 --mesh fsdp=8 --out run
      jaxformer train demo --optimizer muon --optimizer.learning_rate 2e-3 --train.log-to wandb --out run
      jaxformer train translation --settings  # every setting and its default

    Run the same command again to resume where it stopped.
    """

    setting_prefix = "--"

    config: Annotated[str, Word("CONFIG")] = word("A name from `jaxformer configs`, a file, or a saved config.json.")
    out: Run | None = option("The run directory.")
    data_dir: str | None = option("The folder of the corpora; default: the working directory, then $JAXFORMER_DATA.")
    devices: int | None = option("Stop unless all hosts together have N devices.")
    settings: bool = option("Print every setting of CONFIG and exit.", False)
    no_compile_cache: bool = option("Compile every program again.", False)
    profile: str = option("Trace steps FIRST:LAST, or a number of steps, to RUN/profile.", "")


@command
def train(args: Train, settings: list[str]) -> int:
    """Trains; returns 0 when done, 85 after SIGTERM or a time limit, 130 after Ctrl-C, in all cases after saving."""
    from jaxformer.cli.arguments import resolved, settings_help

    settings = located(args.data_dir, settings)
    config = resolved(args.config, settings, args.out)
    if args.settings:
        print(settings_help(config))
        return 0
    refuse((args.out is None, "--out RUN is missing"))
    assert args.out is not None
    from jaxformer.cli import STARTED, runtime
    from jaxformer.tasks import runner

    runtime.join(config, args.out, devices=args.devices)
    runtime.start(compile_cache=not args.no_compile_cache)
    hooks, console = [runtime.KeepCode()], runtime.console()
    result = runner.train(config, args.out, began=STARTED, console=console, profile=args.profile, hooks=hooks)
    return runtime.EXIT_CODES.get(result.reason, 0)


@dataclasses.dataclass(frozen=True)
class Sweep(Options):
    """Trains a configuration with several seeds, and with every combination of the values of --set, one after another;
    reports the mean of each result and its 95 % interval.

    examples:
      jaxformer sweep demo --seeds 3 --out runs/demo-seeds
      jaxformer sweep translation --data.source my.en --data.target my.fr --set model.dropout=0,0.1 --evaluate --out all
      jaxformer sweep demo --set optimizer=adam,muon --train.steps 500 --out runs/optimizers --plan

    Run the same command again to resume where it stopped; more seeds or values add trainings. The results are also in
    sweep.json and sweep.png of the folder.
    """

    setting_prefix = "--"

    config: Annotated[str, Word("CONFIG")] = word("A name from `jaxformer configs`, a file, or a saved config.json.")
    out: OutputFolder = option("The folder of the run directories and the results.", REQUIRED)
    seeds: Positive = option("The number of seeds of each combination, from --seed on (default 3).", 3)
    set: tuple[Name, ...] = option("A setting and its values, NAME=VALUE,VALUE; with several, every combination.", ())
    evaluate: bool = option("Also score each complete run on its test data, as `jaxformer evaluate` does.", False)
    plan: bool = option("Print the trainings and their states, and exit.", False)
    data_dir: str | None = option("The folder of the corpora; default: the working directory, then $JAXFORMER_DATA.")
    json: bool = option("Print the results as JSON.", False)
    no_compile_cache: bool = option("Compile every program again.", False)


@command
def sweep(args: Sweep, settings: list[str]) -> int:
    """Trains all, and reports; returns 0 when done, 2 if some failed, else as `train` does: 85 or 130."""
    from jaxformer.cli.arguments import resolved
    from jaxformer.tasks import sweep as sweeping

    settings = located(args.data_dir, settings)
    grid = sweeping.read_grid(args.set)
    first = resolved(args.config, settings).seed

    def configure(values: Mapping[str, str], run: pathlib.Path) -> TaskConfig:
        return resolved(args.config, [*settings, *(f"--{name}={value}" for name, value in values.items())], run)

    refuse((args.plan and args.json, "--plan prints a line for each training: --json has no effect"))
    trials = sweeping.trials(args.out, grid, range(first, first + args.seeds), configure)
    states = [sweeping.state(trial) for trial in trials]  # refuses other files before anything starts
    if args.plan:
        for trial, state in zip(trials, states, strict=True):
            print(shown(f"{trial.path}: {trial.name}, {trial.config.train.steps:,} steps: {state}"))
        return 0
    return _sweep(args, trials, states)


def _sweep(args: Sweep, trials: list[sweeping.Trial], states: list[str]) -> int:
    """Trains, scores and reports the trainings of a sweep; returns the exit code."""
    from jaxformer.cli import STARTED, runtime
    from jaxformer.cli.evaluate import evaluate
    from jaxformer.multihost import cluster
    from jaxformer.tasks import comparison
    from jaxformer.tasks import sweep as sweeping

    processes = cluster.initialize().num_processes
    refuse((processes > 1, f"a sweep has one process, got {processes}; train each configuration by `jaxformer train`"))
    runtime.start(compile_cache=not args.no_compile_cache)
    if args.evaluate:
        sweeping.check_test_data(trials)
    done = states.count(sweeping.DONE)
    cells = len({trial.cell for trial in trials})
    combinations = f"{cells} combination{'s' * (cells > 1)} of settings, {args.seeds} seed{'s' * (args.seeds > 1)} each"
    runtime.say(f"{len(trials)} trainings in {args.out}: {combinations}; {done} complete")
    about: dict[str, Any] = {}

    def score(run: pathlib.Path) -> None:
        with contextlib.redirect_stdout(sys.stderr):
            evaluate([str(run)])

    def save() -> None:
        about.update(sweeping.report(trials))
        write_text(args.out / "sweep.json", as_indented_json(about) + "\n")
        comparison.draw(about["summary"], args.out / "sweep.png")

    reason, failures = sweeping.train(
        trials,
        say=runtime.say,
        score=score if args.evaluate else None,
        each=save,
        began=STARTED,
        console=runtime.console(),
    )
    if args.json:
        print(as_indented_json(about))
    elif about.get("summary"):
        print(comparison.as_text(about["summary"]))
    for name, text in failures.items():
        print(shown(f"{name} failed: {text}"), file=sys.stderr)
    return runtime.EXIT_CODES.get(reason, 2 if failures else 0)


@dataclasses.dataclass(frozen=True)
class Demo(Options):
    """Trains a small English-French translator on a built-in corpus, and shows what it learned.

    examples:
      jaxformer demo
      jaxformer demo --out runs/demo --train.steps 800

    The result is an ordinary run: use it with `jaxformer translate runs/demo "..."`.
    """

    setting_prefix = "--"

    out: Run = option("The run (default: runs/demo).", pathlib.Path("runs/demo"))


@command
def demo(args: Demo, settings: list[str]) -> int:
    """Trains the built-in translator, scores it, translates five sentences and draws an attention map."""
    from jaxformer.cli import STARTED
    from jaxformer.cli.arguments import override
    from jaxformer.tasks.registry import resolve

    config = override(resolve("demo"), settings)
    is_set = any(word.startswith(("--optimizer.warmup_steps", "--optimizer.warmup-steps")) for word in settings)
    warmup, steps = config.optimizer.warmup_steps, config.train.steps
    if shortened := warmup >= steps and not is_set:
        shorter = dataclasses.replace(config.optimizer, warmup_steps=steps // 10)
        config = dataclasses.replace(config, optimizer=shorter)
    from jaxformer.cli import runtime
    from jaxformer.tasks import runner

    runtime.start()
    if shortened:
        steps, shorter = f"{steps:,} steps", config.optimizer.warmup_steps
        runtime.console().print(f"the demo's warm-up of {warmup} steps does not fit in {steps}: it has {shorter}")
    result = runner.train(config, args.out, console=runtime.console(), began=STARTED)
    if result.reason in runtime.EXIT_CODES:
        return runtime.EXIT_CODES[result.reason]
    return _show(args.out)


def _show(run: pathlib.Path) -> int:
    """Prints scores, translations and an attention map of the trained run."""
    from jaxformer import demo
    from jaxformer.evaluation.scores import bleu
    from jaxformer.tasks import registry, restore
    from jaxformer.tasks.translation import TranslationConfig, Translator
    from jaxformer.tasks.translation.corpora import load_corpora

    config, translator = registry.read_config(run), restore.load(run)
    assert isinstance(config, TranslationConfig)
    assert isinstance(translator, Translator)
    print("\nBLEU on the built-in corpus          this model   word-for-word dictionary")
    signature, lowercase = "", translator.tokenizer.normalizer.lowercase
    for name, pairs in load_corpora(config.data).tests.items():
        part = pairs.load()
        score = bleu(translator.translate(part.source), part.target, lowercase=lowercase)
        dictionary = bleu([demo.dictionary_baseline(text) for text in part.source], part.target, lowercase=lowercase)
        signature = score.signature
        print(f"  {name} ({len(part):,}){'':{28 - len(name)}}{score.value:8.2f}   {dictionary.value:8.2f}")
    print(f"  signature: {signature}\n")
    examples = [pair.english for pair in demo.EXAMPLES]
    translations = translator.translate(examples)
    for english, french in zip(examples, translations, strict=True):
        print(f"  {english}\n    {french}")
    inspect = _align(translator, run, demo.splits(num_train=config.data.grammar_pairs), examples[0], translations[0])
    print(f"the loss curves:        {run / 'curves.png'}")
    sentence = "The old man does not see the white house."
    quoted = shlex.quote(str(run))
    print(f'more:                   jaxformer translate {quoted} "{sentence}"')
    if inspect:
        print(f'                        jaxformer inspect {quoted} {inspect} --source "{sentence}"')
    return 0


def _align(translator: Translator, run: pathlib.Path, splits: GrammarSplits, source: str, target: str) -> str:
    """Prints alignment error rates and draws an attention map; returns the options of `jaxformer inspect` for it.

    For a model without attention, it does neither, and there are no options.
    """
    from jaxformer.inspection import attention_maps, plots
    from jaxformer.tasks.translation import alignment

    if not translator.net.config.has_attention:
        print("\nWords are not aligned, and no attention is drawn: the model has model.attention none.\n")
        return ""
    rates = alignment.head_error_rates(translator, splits.validation)
    head = min(rates, key=rates.__getitem__)
    print(f"\nWords are aligned by {alignment.describe(head)}, with the fewest errors on validation sentences.")
    print("Alignment error rate                 this model   diagonal")
    for name, pairs in (("unseen sentences", splits.seen), ("unseen combinations", splits.unseen)):
        rate, diagonal = alignment.head_error_rates(translator, pairs)[head], alignment.diagonal_error_rate(pairs)
        print(f"  {name} ({len(pairs):,}){'':{28 - len(name)}}{rate:8.3f}   {diagonal:8.3f}")
    (pieces,) = alignment.word_attention(translator, [source], [target])
    words = attention_maps.select(pieces, layer=head[0], head=head[1])
    print(f"\nWhere it looked, word by word:\n{attention_maps.as_text(words)}\n")
    picture = plots.attention_map(words, title=alignment.describe(head))
    print(f"the same as a picture:  {plots.save(picture, run / 'attention.png')}")
    return alignment.options(head)
