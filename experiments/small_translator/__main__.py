"""Trains a small English-German translator on Tatoeba and writes it as a folder to publish; the same command resumes.

    python -m experiments.small_translator --data-dir data --out runs/small --minutes 20    # repeat until it is done
    python -m experiments.small_translator --smoke --out runs/smoke

--data-dir holds tatoeba/ (`jaxformer data fetch tatoeba`). The folder --out/en-de-tatoeba gets the parameters in
bfloat16 in the format of Hugging Face, the tokenizer, a model card with scores and attribution, provenance.json, and
the test sentences. The scores are those of this folder, read again. --minutes ends the call in time. The smoke
version's results mean nothing.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import pathlib
import shutil
import tempfile
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

import jaxformer
from experiments import command
from experiments.small_translator import card, corpus
from experiments.translation import smoke
from jaxformer import demo, interop
from jaxformer.config import changed, comparable
from jaxformer.data.lines import read_lines
from jaxformer.errors import DataError
from jaxformer.evaluation.resampling import interval
from jaxformer.files import creating_folder, remove_folder, write_text
from jaxformer.models import EncoderDecoderConfig
from jaxformer.tasks import pretrained
from jaxformer.tasks.translation import Beam, DataConfig, DecodeConfig, TranslationConfig
from jaxformer.training.config import MuonConfig, TrainConfig

NAME = "en-de-tatoeba"
LARGEST = 6_000_000
"""The most bytes of the file of parameters."""


def main(arguments: list[str] | None = None) -> int:
    about = "the folder of the data, the run, its record and the published folder"
    parser = command.parser("small_translator", __doc__, out=about, data="tatoeba")
    return command.exit_code(run, parser.parse_args(arguments))


def run(args: argparse.Namespace) -> None:
    """Prepares the data, trains the model, and writes and scores the folder; what is there is not made again.

    Raises:
      ConfigError: the data are not named, or `--out` has data of other pairs, or a record of other settings.
      DataError: the table is missing or has lines that are no pairs, or the file of parameters is too large.
      Stopped: the time was up.
    """
    end = command.end_of_call(args.minutes)
    config = changed(small(), {"data": {"directory": str((args.out / "data").resolve())}})
    if args.smoke:
        config = changed(config, smoke.CHANGES)
        pairs, held_out = [(pair.english, pair.french) for pair in demo.generate(300)], {"val": 20, "test": 20}
    else:
        pairs = corpus.read_pairs(command.data_directory(args.data_dir, "tatoeba") / corpus.TABLE)
        held_out = corpus.HELD_OUT
    corpus.write_parts(corpus.split(pairs, held_out), args.out / "data")

    def make() -> Mapping[str, Any]:
        seconds = command.train(config, args.out / "run", end)
        steps = jaxformer.average(args.out / "run", last=config.train.keep_last)
        made = {"averaged": steps, "seconds": seconds, "facts": command.facts(), **published(args.out)}
        about = {name: made[name] for name in ("facts", "seconds", "sha256")} | {"configuration": comparable(config)}
        command.write_results(args.out / NAME / "provenance.json", about | versions(args.out / "run"))
        write_text(args.out / NAME / "README.md", card.card(made))
        return made

    command.publish(args.out, card.scores(command.record(args.out / "records" / f"{NAME}.json", config, make)))


def small() -> TranslationConfig:
    """English to German, 2.7 M parameters: 6,000 updates of 4,096 tokens; see the page for the reasons."""
    files: dict[str, Any] = {
        f"{prefix}{side}": f"{part}.{language}"
        for prefix, part in (("", "train"), ("validation_", "val"), ("test_", "test"))
        for side, language in (("source", "en"), ("target", "de"))
    }
    return TranslationConfig(
        name=f"small translator {NAME}",
        model=EncoderDecoderConfig(
            d_model=192,
            num_heads=4,
            d_ff=384,
            num_encoder_layers=3,
            num_decoder_layers=2,
            dropout=0.1,
            norm_position="pre",
        ),
        data=DataConfig(
            **files,
            source_language="en",
            target_language="de",
            vocab_size=5000,
            tokens_per_batch=4096,
            num_shapes=7,
            max_length=96,
        ),
        optimizer=MuonConfig(learning_rate=4e-3, warmup_steps=500, cooldown=0.5),
        train=TrainConfig(steps=6000, validate_every=500, checkpoint_every=150, keep_last=5),
        decode=DecodeConfig(search=Beam(beam_size=4), validation_sentences=200),
    )


def versions(run: pathlib.Path) -> dict[str, Any]:
    """Returns the versions of packages, and the hashes of data and tokenizer, that a run has recorded."""
    saved = json.loads((run / "provenance.json").read_text(encoding="utf-8"))
    return {name: saved[name] for name in ("versions", "data", "tokenizer")}


def published(out: pathlib.Path) -> dict[str, Any]:
    """Writes the folder to publish, reads it again and returns its scores, sizes and hash.

    Raises:
      DataError: the file of parameters is too large.
    """
    run, folder = out / "run", out / NAME
    remove_folder(folder)
    remove_folder(out / "read")
    with tempfile.TemporaryDirectory() as temporary, creating_folder(folder, mode=0o777) as made:
        exact, half = pathlib.Path(temporary) / "float32", pathlib.Path(temporary) / "bfloat16"
        family = pretrained.export(run, exact, checkpoint="average")
        found = interop.load_pretrained(exact)
        params = jax.tree.map(lambda x: x.astype(jnp.bfloat16).astype(x.dtype), found.params)
        interop.save_pretrained(
            half, found.net, params, family=family, settings={**found.settings, "dtype": "bfloat16"}
        )
        for path in (*exact.iterdir(), *half.iterdir()):  # the second has the parameters and their dtype
            shutil.copyfile(path, made / path.name)
        for language in ("en", "de"):
            shutil.copyfile(out / "data" / f"test.{language}", made / f"test.{language}")
        write_text(made / "ATTRIBUTION.txt", card.ATTRIBUTION)
        size = (made / "model.safetensors").stat().st_size
        if size > LARGEST:
            raise DataError(f"model.safetensors must have at most {LARGEST:,} bytes, got {size:,}")
        digest = hashlib.sha256((made / "model.safetensors").read_bytes()).hexdigest()
    pretrained.convert(folder, out / "read")
    translator = jaxformer.load(out / "read")
    files = [folder / f"test.{language}" for language in ("en", "de")]
    (scores,) = jaxformer.evaluate(out / "read", translator, files=files).values()
    before = jaxformer.evaluate(run, jaxformer.load(run, checkpoint="average"), split="validation")
    texts = (
        "The train leaves at half past nine.",
        "I don't know where she lives.",
        "We should have asked him earlier.",
    )
    return {
        "parameters": translator.net.num_parameters,
        "bytes": size,
        "sha256": digest,
        "pairs": len(read_lines(out / "data" / "train.en")),
        "scores": [
            {"name": x.name, "value": x.value, "signature": x.signature, "interval": x.sample and interval(x.sample)}
            for x in scores
        ],
        "validation": {x.name: x.value for found in before.values() for x in found},
        "examples": dict(zip(texts, translator.translate(texts), strict=True)),
    }


if __name__ == "__main__":
    command.script(main)
