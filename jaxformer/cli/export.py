"""``jaxformer export``."""

from __future__ import annotations

import dataclasses
from typing import Annotated

from jaxformer.cli.command import REQUIRED, Options, OutputFolder, Run, Word, command, option, word


@dataclasses.dataclass(frozen=True)
class Export(Options):
    """Writes a run in the format of Hugging Face.

    examples:
      jaxformer export runs/en-de --out en-de-hf
      jaxformer export runs/en-de --out en-de-hf --checkpoint average
      jaxformer export runs/tuned-gpt2 --out gpt2-hf

    The folder holds config.json, model.safetensors and the tokenizer, which AutoTokenizer and the Auto classes of
    transformers read, and the programs that serve its models. Language models become GPT-2, Llama, Mistral or Qwen,
    masked ones BERT or RoBERTa, translators Marian, Pegasus, BART or T5: the first family that can express the model.
    docs/families.md lists the settings that no family has. Search settings are written if transformers has them; the
    others are printed.
    """

    run: Run = word("A run directory.")
    out: OutputFolder = option("The folder to create.", REQUIRED)
    checkpoint: str = option("The checkpoint: best (default), last, average, or a step.", "best")
    family: Annotated[str, Word("TYPE")] = option("The model_type (default: the first that fits).", "")
    mesh: str = option("The device mesh; default: a copy on every device.", "")


@command
def main(args: Export) -> int:
    """Writes a run as a Hugging Face folder."""
    from jaxformer.cli import runtime
    from jaxformer.tasks.pretrained import export

    runtime.start()
    family = export(args.run, args.out, checkpoint=args.checkpoint, family=args.family, mesh=args.mesh, say=runtime.say)
    print(f"{args.out} is now a Hugging Face folder of model_type {family}")
    return 0
