"""The commands that train: ``train`` and ``demo``."""

from __future__ import annotations

import dataclasses
import pathlib
import shlex
from typing import TYPE_CHECKING, Annotated

from jaxformer.cli.command import Options, Run, Word, command, option, word
from jaxformer.errors import ConfigError

if TYPE_CHECKING:
    from jaxformer.demo import GrammarSplits
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

    usage = ("--out RUN",)
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

    if args.data_dir is not None:
        if not args.data_dir:
            raise ConfigError("the path of --data-dir is empty")
        settings = ["--data.directory", args.data_dir, *settings]
    config = resolved(args.config, settings, args.out)
    if args.settings:
        print(settings_help(config))
        return 0
    if args.out is None:
        raise ConfigError("--out RUN is missing")
    from jaxformer.cli import STARTED, runtime
    from jaxformer.tasks import runner

    runtime.join(config, args.out, devices=args.devices)
    runtime.start(compile_cache=not args.no_compile_cache)
    hooks, console = [runtime.KeepCode()], runtime.console()
    result = runner.train(config, args.out, began=STARTED, console=console, profile=args.profile, hooks=hooks)
    return runtime.EXIT_CODES.get(result.reason, 0)


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
