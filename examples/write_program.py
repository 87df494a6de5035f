"""Writes the beam search of a trained translator as a program, which runs without this library.

    python examples/write_program.py runs/en-de --out program
    python examples/run_program.py program "The house is old."

The folder has a program of `jax.export` for CPUs, GPUs and TPUs, the parameters, and the sentencepiece vocabulary. JAX
promises to read a program for six months only, so keep the run.
"""

import argparse
import pathlib
from collections.abc import Sequence
from typing import cast

import jax
import jax.export
import jax.numpy as jnp
import numpy as np

import jaxformer
from jaxformer import decoding
from jaxformer.functional import Tokens
from jaxformer.interop import export
from jaxformer.models import EncoderDecoder
from jaxformer.tasks.translation import Translator
from jaxformer.tokenizers.subwords import SubwordTokenizer


def write(translator: Translator, out: pathlib.Path, *, beam_size: int = 4, length: int = 128) -> None:
    """Writes a search for translations of at most `length` tokens, of any number of sentences of at most 512."""
    tokenizer = translator.tokenizer
    if not isinstance(tokenizer, SubwordTokenizer) or tokenizer.normalizer != type(tokenizer.normalizer)():
        raise SystemExit("the vocabulary must be one of sentencepiece alone: neither pretrained nor normalized")
    special = tokenizer.special
    leaves, tree = jax.tree.flatten(translator.params)

    def search(leaves: list[jax.Array], source: jax.Array) -> jax.Array:
        model = cast(EncoderDecoder, translator.net.bind(jax.tree.unflatten(tree, leaves)))
        memory = model.encode(Tokens(source, source != special.pad))
        context, state = model.start(memory, beam_size=beam_size, length=length)
        limits = decoding.Limits(max_length=length, bos=special.bos, eos=special.eos, pad=special.pad)
        return decoding.beam_search(
            decoding.ContextStep(model.step, context), state, limits, beam_size=beam_size
        ).tokens[:, 0]

    size = jax.export.symbolic_shape("b, s", constraints=["s <= 512"])
    shapes = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in leaves], jax.ShapeDtypeStruct(size, jnp.int32)
    program = jax.export.export(jax.jit(search), platforms=["cpu", "cuda", "tpu"])(*shapes)
    out.mkdir(parents=True)
    (out / "search.jax").write_bytes(export.serialize(program))
    np.savez(out / "params.npz", *map(np.asarray, leaves))
    tokenizer.save(out / "tokenizer.model")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", help="a run of translation")
    parser.add_argument("--out", type=pathlib.Path, required=True, help="the folder to create")
    args = parser.parse_args(arguments)
    write(jaxformer.load(args.run), args.out)


if __name__ == "__main__":
    main()
