"""``jaxformer export``."""

from __future__ import annotations

import argparse
import functools
from collections.abc import Sequence

from jaxformer.cli.paths import local_path, output_folder

EXAMPLES = """examples:
  jaxformer export runs/en-de --out en-de-hf
  jaxformer export runs/en-de --out en-de-hf --checkpoint average
  jaxformer export runs/tuned-gpt2 --out gpt2-hf

The folder holds config.json, model.safetensors and the tokenizer, which AutoTokenizer and the Auto classes of
transformers read, and the programs that serve its models. Language models become GPT-2, Llama, Mistral or Qwen, masked
ones BERT or RoBERTa, translators Marian, Pegasus, BART or T5: the first family that can express the model.
docs/families.md lists the settings that no family has. Search settings are written if transformers has them; the others
are printed.
"""


def main(arguments: Sequence[str]) -> int:
    """Writes a run as a Hugging Face folder."""
    parser = argparse.ArgumentParser(
        prog="jaxformer export",
        description="Writes a run in the format of Hugging Face.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("run", metavar="RUN", type=local_path, help="a run directory")
    parser.add_argument("--out", metavar="FOLDER", type=output_folder, required=True, help="the folder to create")
    parser.add_argument("--checkpoint", default="best", help="best (default), last, average, or a step")
    parser.add_argument("--family", default="", metavar="TYPE", help="the model_type (default: the first that fits)")
    parser.add_argument("--mesh", default="", metavar="MESH", help="device mesh; default: a copy on every device")
    options = parser.parse_args(arguments)
    from jaxformer.cli import runtime
    from jaxformer.tasks.pretrained import export
    from jaxformer.training.progress import print_line

    runtime.start()
    given = {"checkpoint": options.checkpoint, "family": options.family, "mesh": options.mesh}
    family = export(options.run, options.out, **given, say=functools.partial(print_line, runtime.console()))
    print(f"{options.out} is now a Hugging Face folder of model_type {family}")
    return 0
