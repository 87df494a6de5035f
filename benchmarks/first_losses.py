"""Trains the first steps of every kind of model, and prints each loss exactly: a net under a change of the library.

Everything is generated, so all runs see the same data. One machine repeats its losses bit for bit; another kind of
processor, or another version of jax, may round differently. Run it before a change, and compare after:

    python -m benchmarks.first_losses --out before.json
    python -m benchmarks.first_losses --out after.json --compare before.json
    python -m benchmarks.first_losses --only rotary recurrent --compare before.json --tolerance 1e-5

If it is interrupted, the same command resumes at the next kind. With --compare, the exit code is 1 if a loss differs by
more than the tolerance. Other paths of parameters are reported, and no failure.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import pathlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

import jaxformer
from benchmarks import command
from jaxformer import demo
from jaxformer.cli.arguments import resolved
from jaxformer.digests import short_digest
from jaxformer.errors import ConfigError, JaxformerError
from jaxformer.hardware import processor_name
from jaxformer.training.logging import read_log
from jaxformer.training.progress import StderrConsole

FAST = "--xla_backend_optimization_level=0 --xla_cpu_parallel_codegen_split_count=1"
"""The flags that make the compiler faster."""


class Kind(NamedTuple):
    """A short training, as the words after ``jaxformer train``; paths are relative to the folder of the corpora."""

    words: str
    start: str = ""
    """The kind whose run it starts from."""
    devices: int = 1
    """The number of devices; more than one are parts of the CPU."""
    optimized: bool = False
    """Compiled as for users; otherwise as in tests, for compiling takes most of the time of a short training."""


SHORT = "--train.steps 20 --train.validate-every 20 --train.checkpoint-every 0 --optimizer.warmup_steps 5"
SHORT += " --train.tensorboard False"
WIDTH = "--model.d_model 32 --model.num_heads 4 --model.d_ff 64"
PAIRS = "--data.corpus grammar --data.grammar_pairs 2000 --data.vocab_size 400 --data.tokens_per_batch 512"
PAIRS += " --data.num_shapes 1 --data.max_length 48 --decode.validation_sentences 0"
PAIR = f"translation:tiny {SHORT} {PAIRS} --model.dropout 0"
TRANSLATION = f"{PAIR} {WIDTH} --model.num_encoder_layers 1 --model.num_decoder_layers 1"
RECURRENT = f"{PAIR} --model recurrent --model.d_model 32"
TEXT = f"language_model:tiny {SHORT} {WIDTH} --data.text text --model.dropout 0 --data.length 32 --data.batch_size 8"
TEXT += " --model.num_layers 1"
MASKED = f"masked_language_model:tiny {SHORT} {WIDTH} --data.text text --data.vocab_size 400 --data.length 48"
MASKED += " --data.batch_size 8 --model.num_layers 1"
CLASSES = f"classification:tiny {SHORT} {WIDTH} --data.train labels --data.vocab_size 400 --data.tokens_per_batch 1024"
CLASSES += " --data.num_shapes 1 --model.num_layers 1"
IMAGES = f"{SHORT} --data.train images --data.batch_size 16"
CAPTIONS = f"captioning:tiny {SHORT} --data.train captions --data.images images --data.tokenizer characters"
CAPTIONS += " --data.batch_size 8 --decode.validation_images 0 --train.metric loss --model.d_model 32"
CAPTIONS += " --model.image.image_size 32 32 --model.image.widths 8 16"

KINDS: dict[str, Kind] = {
    "demo": Kind(f"demo {SHORT} --train.steps 200 --train.validate-every 200 --optimizer.schedule.decay_steps 2000"
                 " --optimizer.warmup_steps 200 --decode.validation_sentences 0", optimized=True),
    "translation": Kind(TRANSLATION),
    "sharded": Kind(f"{TRANSLATION} --model.dropout 0.1 --mesh data=4,tensor=2", devices=8),
    "no-smoothing": Kind(f"{TRANSLATION} --loss.label_smoothing 0"),
    "z-loss": Kind(f"{TRANSLATION} --loss.z_loss 1e-2"),
    "dropout": Kind(f"{TRANSLATION} --model.dropout 0.1 --model.attention_dropout 0.1"
                    " --model.feed_forward.dropout 0.1"),
    "r-drop": Kind(f"{TRANSLATION} --loss.r_drop 5 --model.dropout 0.1"),
    "simcut": Kind(f"{TRANSLATION} --loss.simcut.weight 3 --model.dropout 0.1"),
    "untied": Kind(f"{TRANSLATION} --model.tie_embeddings none --model.output_bias True"),
    "tied-decoder": Kind(f"{TRANSLATION} --model.tie_embeddings decoder"),
    "post-norm": Kind(f"{TRANSLATION} --model.norm_position post"),
    "deep-norm": Kind(f"{TRANSLATION} --model.norm_position deep"),
    "remat": Kind(f"{TRANSLATION} --model.num_decoder_layers 2 --model.remat True --model.dropout 0.1"),
    "loop": Kind(f"{TRANSLATION} --model.num_encoder_layers 5 --model.num_decoder_layers 5 --model.dropout 0.1"),
    "bfloat16": Kind(f"{TRANSLATION} --model.compute_dtype bfloat16"),
    "microbatches": Kind(f"{TRANSLATION} --model.dropout 0.1 --train.num_microbatches 2 --train.ema_decay 0.9"),
    "muon": Kind(f"{TRANSLATION} --optimizer muon"),
    "segmentations": Kind(f"{TRANSLATION} --data.num_segmentations 0"),
    "recurrent": Kind(RECURRENT),
    "recurrent-luong": Kind(f"{RECURRENT} --model.cell gru --model.attention general"
                            " --model.attention.input_feeding True"
                            " --model.dropout 0.1 --model.state_dropout 0.1 --model.num_encoder_layers 2"
                            " --model.num_decoder_layers 2 --model.tie_embeddings none"),
    "recurrent-no-attention": Kind(f"{RECURRENT} --model.cell rnn --model.attention none"),
    "learned": Kind(TEXT),
    "sinusoidal": Kind(f"{TEXT} --model.positions sinusoidal"),
    "rotary": Kind(f"{TEXT} --model.positions rotary"),
    "alibi": Kind(f"{TEXT} --model.positions alibi"),
    "t5": Kind(f"{TEXT} --model.positions t5 --model.num_layers 2"),
    "relative-keys": Kind(f"{TEXT} --model.positions relative_keys --model.positions.max_distance 8"),
    "transformer-xl": Kind(f"{TEXT} --model.positions transformer_xl --model.num_layers 2"),
    "untied-text": Kind(f"{TEXT} --model.tie_embeddings False --model.dropout 0.1"),
    "window": Kind(f"{TEXT} --model.attention_window 8 --model.attention_sinks True --model.qk_norm True"
                   " --model.num_kv_heads 2 --model.attention_soft_cap 20 --model.positions rotary"),
    "llama": Kind(f"{TEXT} --model.positions rotary --model.norm rms --model.feed_forward gated"
                  " --model.activation silu --model.feed_forward.bias False"),
    "blockwise": Kind(f"{TEXT} --data.length 256 --data.batch_size 2 --model.attention_dropout 0.1"),
    "experts": Kind(f"{TEXT} --model.feed_forward experts --model.feed_forward.num_experts 4"),
    "experts-capacity": Kind(f"{TEXT} --model.feed_forward experts --model.feed_forward.num_experts 4"
                             " --model.feed_forward.gated True --model.feed_forward.capacity_factor 1.25"),
    "adapters": Kind(f"{TEXT} --tune.adapters lora --tune.adapters.rank 2 --tune.frozen decoder/*", start="learned"),
    "masked": Kind(MASKED),
    "classification": Kind(f"{CLASSES} --model.pooling mean"),
    "classification-started": Kind(CLASSES, start="masked"),
    "vision": Kind(f"vision:tiny {IMAGES} {WIDTH} --model.patch_size 8 --model.num_layers 1 --model.dropout 0.1"),
    "convolution": Kind(f"vision:convolution {IMAGES} --model.widths 8 16 --model.num_blocks 1"),
    "convolution-attention": Kind(f"vision:convolution {IMAGES} --model.widths 8 16 --model.num_blocks 1"
                                  " --model.attention gain"),
    "captions": Kind(CAPTIONS),
    "captions-hard": Kind(f"{CAPTIONS} --model.attention hard --model.context_gate True"),
    "captions-transformer": Kind(f"{CAPTIONS} --model transformer --model.num_layers 1 --model.num_heads 4"
                                 " --model.d_ff 64"),
}  # fmt: skip
"""Every kind by name. Where a setting gets another name, its words change, and nothing else."""


def write_corpora(root: pathlib.Path) -> None:
    """Writes a text, labels, images and captions; they are always the same."""
    from PIL import Image

    pairs = demo.generate(600)
    (root / "text").write_text("".join(f"{pair.english}\n" for pair in pairs), encoding="utf-8")
    rows = [f"{label}\t{text}\n" for pair in pairs for label, text in ((0, pair.english), (1, pair.french))]
    (root / "labels").write_text("".join(rows), encoding="utf-8")
    captions = []
    for number in range(40):
        y, x, channel = np.indices((32, 32, 3))
        dark = (y * number + x * 3 + channel * 7) % 120
        for name, pixels in (("dark", dark), ("light", 255 - dark)):
            file = root / "images" / name / f"{number}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels.astype(np.uint8)).save(file)
            captions.append(f"{name}/{number}.png\tIt is {name}, number {number}.\n")
    (root / "captions").write_text("".join(captions), encoding="utf-8")


def train(name: str, root: pathlib.Path) -> dict[str, Any]:
    """Trains a kind on the corpora in `root`, and returns its losses and hashes of its parameters."""
    kind, runs, began = KINDS[name], root / "runs", time.perf_counter()
    reference, *words = kind.words.split()
    words += ["--data.directory", str(root), "--data.cache", str(root / "cache")]
    if kind.start:
        if not (runs / kind.start).exists():
            train(kind.start, root)
        words += ["--init-from", f"{runs / kind.start}:last"]
    result = jaxformer.train(resolved(reference, words), runs / name, console=StderrConsole(quiet=True))
    log = read_log(runs / name / "log.jsonl")
    leaves = jax.tree_util.tree_leaves_with_path(jax.device_get(result.state.params))
    shapes = sorted(f"{jax.tree_util.keystr(path)} {x.dtype}{list(x.shape)}" for path, x in leaves)
    # By content, so that another path alone leaves it as it is.
    bits = sorted(hashlib.sha256(f"{x.shape}".encode() + np.asarray(x).tobytes()).digest() for _, x in leaves)
    return {
        "words": kind.words,
        "losses": [_hex(entry["loss"]) for entry in log if "loss" in entry],
        "validation": [_hex(entry["validation_loss"]) for entry in log if "validation_loss" in entry],
        "paths": short_digest(shapes),
        "bits": short_digest(bits),
        "parameters": shapes,
        "seconds": round(time.perf_counter() - began, 1),
    }


def _hex(loss: float | None) -> str:
    """Returns a loss exactly; the log has None for one that is not finite."""
    return math.nan.hex() if loss is None else loss.hex()


def train_elsewhere(name: str, root: pathlib.Path) -> dict[str, Any]:
    """Trains a kind in a process of its own, with its number of devices and its flags of the compiler."""
    kind, env = KINDS[name], dict(os.environ)
    if kind.devices > 1:
        env |= {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": str(kind.devices)}
    if kind.optimized:
        env["XLA_FLAGS"] = ""
    words = [sys.executable, "-m", "benchmarks.first_losses", "--here", "--only", name]
    words += ["--out", str(root / f"{name}.json")]
    done = subprocess.run(words, env=env, cwd=pathlib.Path(__file__).parents[1], capture_output=True, text=True)
    if done.returncode:
        raise JaxformerError(f"{name}: {(done.stderr.strip().splitlines() or ['its process failed'])[-1]}")
    return json.loads((root / f"{name}.json").read_text(encoding="utf-8"))["kinds"][name]


def compare(old: Mapping[str, Any], new: Mapping[str, Any]) -> tuple[str, float]:
    """Returns the difference between two results of a kind in words, and the largest relative one of their losses."""
    found, first = 0.0, ""
    for part, word in (("losses", "step"), ("validation", "validation")):
        if len(old[part]) != len(new[part]):
            return f"{len(old[part])} {part} before, {len(new[part])} now", math.inf
        for step, pair in enumerate(zip(old[part], new[part], strict=True), 1):
            if pair[0] != pair[1]:
                first = first or f"{word} {step}"
                a, b = map(float.fromhex, pair)
                far = abs(a - b) / max(abs(a), abs(b)) if math.isfinite(a - b) else math.inf
                found = max(found, far)
    said = "equal to the bit"
    if first:
        said = f"differs by at most {found:.2g}, first at {first}"
    elif old["bits"] != new["bits"]:
        said = "losses equal to the bit, the last parameters not"
    if old["paths"] != new["paths"]:
        gone, come = (sorted({*a["parameters"]} - {*b["parameters"]}) for a, b in ((old, new), (new, old)))
        said += f"; other paths of parameters: {len(gone)} gone ({(gone or ['-'])[0]}), "
        said += f"{len(come)} new ({(come or ['-'])[0]})"
    return said, found


def code_digest() -> str:
    """Returns a hash of what losses depend on besides the settings: the code, jax and the processor."""
    files = sorted(pathlib.Path(jaxformer.__file__).parent.rglob("*.py"))
    return short_digest([jax.__version__, processor_name(), *(path.read_bytes() for path in files)])


def read(path: pathlib.Path) -> dict[str, Any]:
    """Returns earlier results.

    Raises:
      ConfigError: the file holds something else.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        found = None
    if not isinstance(found, dict) or not {"code", "kinds"} <= found.keys():
        raise ConfigError(f"{path} must be a file that benchmarks.first_losses has written, got another one")
    return found


def main(arguments: list[str] | None = None) -> int:
    parser = command.parser("first_losses", __doc__)
    parser.add_argument("--only", nargs="+", choices=KINDS, default=[*KINDS], metavar="NAME", help=", ".join(KINDS))
    parser.add_argument("--compare", type=pathlib.Path, help="a file of earlier results")
    parser.add_argument("--tolerance", type=_tolerance, default=1e-6, help="relative; 1e-6 by default")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)  # for `train_elsewhere`
    return command.exit_code(run, parser.parse_args(arguments))


def _tolerance(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 <= number < math.inf:
        raise argparse.ArgumentTypeError(f"it must be a number of at least 0, got {text}")
    return number


def run(args: argparse.Namespace) -> None:
    """Trains, prints and compares everything that was asked for.

    Raises:
      JaxformerError: a loss differs by more than the tolerance.
    """
    old = read(args.compare)["kinds"] if args.compare else {}
    code, kinds = code_digest(), {}
    if args.out is not None and args.out.exists():
        earlier = read(args.out)
        if earlier.get("code") == code:
            kinds = earlier["kinds"]
        else:
            print(f"{args.out} has results of other code: starting over", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        write_corpora(root)
        for name in args.only:
            if kinds.get(name, {}).get("words") != KINDS[name].words:
                kind = KINDS[name]
                here = args.here or (kind.devices == jax.device_count() and not kind.optimized)
                kinds[name] = (train if here else train_elsewhere)(name, root)
                command.write(args.out, {"code": code, "kinds": kinds})
            show(name, kinds[name])
    if args.compare:
        report(old, {name: kinds[name] for name in args.only}, args.tolerance)


def show(name: str, found: Mapping[str, Any]) -> None:
    """Prints the losses of a kind, exactly and as decimal numbers."""
    print(f"{name}: paths {found['paths']}, last parameters {found['bits']}, {found['seconds']} s")
    for part, word in (("losses", "step"), ("validation", "validation")):
        for step, loss in enumerate(found[part], 1):
            print(f"  {word} {step:3d}  {loss:24s} {float.fromhex(loss):.9g}")
    sys.stdout.flush()


def report(old: Mapping[str, Any], new: Mapping[str, Any], tolerance: float) -> None:
    """Prints the comparison of every kind.

    Raises:
      JaxformerError: a loss differs by more than the tolerance.
    """
    beyond = []
    for name, found in new.items():
        if name not in old:
            print(f"{name}: not in the earlier results")
            continue
        said, far = compare(old[name], found)
        print(f"{name}: {said}")
        if far > tolerance:
            beyond.append(name)
    if beyond:
        raise JaxformerError(f"beyond the tolerance of {tolerance:g}: {', '.join(beyond)}")


if __name__ == "__main__":
    os.environ.setdefault("XLA_FLAGS", FAST)  # before JAX starts its devices
    command.script(main)
