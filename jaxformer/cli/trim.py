"""The command ``trim``: a run with a smaller vocabulary."""

from __future__ import annotations

import dataclasses
import shlex

from jaxformer.cli.command import REQUIRED, File, Options, OutputFolder, Run, command, option, word
from jaxformer.errors import ConfigError


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
    if not args.corpus:
        raise ConfigError("no corpus: give --corpus FILE ...")
    from jaxformer.cli import runtime
    from jaxformer.tasks import trim as trimming

    runtime.start()
    options = {"checkpoint": args.checkpoint, "sentences": args.sentences, "say": runtime.say}
    options |= {"language": args.to, "source": args.from_}
    trimming.trim(args.run, args.out, corpus=args.corpus, **options)
    print(f"{args.out} is a run with a smaller vocabulary now; train with --init-from {shlex.quote(str(args.out))}")
    return 0
