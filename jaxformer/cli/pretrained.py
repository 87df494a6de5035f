"""The commands for models of Hugging Face: ``convert`` and ``export``."""

from __future__ import annotations

import dataclasses
import shlex
from typing import Annotated, Literal

from jaxformer.cli.command import (
    REQUIRED,
    Folder,
    Natural,
    Options,
    OutputFolder,
    Run,
    Word,
    command,
    option,
    refuse,
    word,
)


@dataclasses.dataclass(frozen=True)
class Convert(Options):
    """Makes a run from a pretrained Hugging Face model: generate, score, fill, translate, fine-tune it.

    examples:
      jaxformer convert downloads/gpt2 --out runs/gpt2
      jaxformer generate runs/gpt2 "Once upon a time"
      jaxformer train runs/gpt2/config.json --init-from runs/gpt2 --data.text my.txt --out mine
      jaxformer convert downloads/bert-base-uncased --out runs/bert
      jaxformer fill runs/bert "Paris is the [MASK] of France."
      jaxformer convert downloads/flan-t5-small --out runs/t5
      jaxformer translate runs/t5 "translate English to German: The house is old."
      jaxformer convert downloads/opus-mt-en-de --out runs/en-de
      jaxformer translate runs/en-de "The house is old."
      jaxformer convert downloads/nllb-200-distilled-600M --out runs/nllb
      jaxformer translate runs/nllb --from eng_Latn --to deu_Latn "The house is old."
      jaxformer convert Helsinki-NLP/opus-mt-en-fr --out runs/en-fr

    The folder holds config.json, weights in safetensors, and tokenizer.json (for Marian: source.spm, target.spm and
    vocab.json). If there is no such folder, these files of the model of that name are downloaded from huggingface.co,
    ORG/NAME or ORG/NAME@revision, into the cache of huggingface_hub. No code of a model is run. GPT-2, Llama, Mistral
    and Qwen become language models, BERT, RoBERTa and DistilBERT masked ones; T5, BART, Pegasus, Marian, M2M100, NLLB
    and mBART-50 become translators of any text to text, with the search that the folder describes; an encoder without
    a head becomes a run for --init-from of a classifier. docs/families.md has the details.
    """

    folder: Folder = word("The folder of the pretrained model, or its name, ORG/NAME[@revision].")
    out: Run = option("The run directory to create.", REQUIRED)
    length: Natural = option("The context length of a language model (default: up to 1,024).", 0)


@command
def convert(args: Convert) -> int:
    """Makes a run from a pretrained model."""
    from jaxformer.cli import runtime
    from jaxformer.tasks import pretrained, rundir

    runtime.start()
    config = pretrained.convert(args.folder, args.out, length=args.length, say=runtime.say)
    used = {"language_model": "generate", "masked_language_model": "fill", "translation": "translate"}[config.task]
    run = shlex.quote(str(args.out))
    example = f"{used} {run} TEXT"
    if rundir.encoder_family(args.out):
        example = f"train classification --init-from {run} --data.train FILE"
    print(f"{args.out} is a run of {config.task} now; try: jaxformer {example}")
    return 0


@dataclasses.dataclass(frozen=True)
class Export(Options):
    """Writes a run in the format of Hugging Face, or of CTranslate2.

    examples:
      jaxformer export runs/en-de --out en-de-hf
      jaxformer export runs/en-de --out en-de-hf --checkpoint average
      jaxformer export runs/tuned-gpt2 --out gpt2-hf
      jaxformer export runs/en-de --out served --format ctranslate2 --quantization int8

    The folder holds config.json, model.safetensors and the tokenizer, which AutoTokenizer and the Auto classes of
    transformers read, and the programs that serve its models. Language models become GPT-2, Llama, Mistral or Qwen,
    masked ones BERT or RoBERTa, translators Marian, Pegasus, BART or T5: the first family that can express the model.
    docs/families.md lists the settings that no family has. Search settings are written if transformers has them; the
    others are printed. CTranslate2 translates and continues texts on CPUs and GPUs; docs/families.md shows how.
    """

    run: Run = word("A run directory.")
    out: OutputFolder = option("The folder to create.", REQUIRED)
    checkpoint: str = option("The checkpoint: best (default), last, average, or a step.", "best")
    format: Literal["transformers", "ctranslate2"] = option("The format of the folder.", "transformers")
    family: Annotated[str, Word("TYPE")] = option("The model_type of transformers (default: the first that fits).", "")
    quantization: Literal["int8"] | None = option("The matrices of CTranslate2 (default: float32).")
    mesh: str = option("The device mesh; default: a copy on every device.", "")


@command
def export(args: Export) -> int:
    """Writes a run as a folder of Hugging Face or of CTranslate2."""
    serve = args.format == "ctranslate2"
    refuse(
        (serve and args.family, "--family is for --format transformers"),
        (args.quantization and not serve, "--quantization is for --format ctranslate2"),
    )
    from jaxformer.cli import runtime
    from jaxformer.tasks import pretrained

    runtime.start()
    options = {"checkpoint": args.checkpoint, "mesh": args.mesh, "say": runtime.say}
    if serve:
        pretrained.export_ctranslate2(args.run, args.out, quantization=args.quantization or "", **options)
        print(f"{args.out} is now a folder of CTranslate2" + (f" in {args.quantization}" if args.quantization else ""))
        return 0
    family = pretrained.export(args.run, args.out, family=args.family, **options)
    print(f"{args.out} is now a Hugging Face folder of model_type {family}")
    return 0
