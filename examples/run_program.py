"""Translates with a program of `examples/write_program.py`; needs jax, flatbuffers and sentencepiece, not jaxformer.

python examples/run_program.py program "The house is old."
"""

import argparse
import pathlib

import jax.export
import numpy as np
import sentencepiece

SPACE, ESCAPE = "\u2581", "\ue000"  # sentencepiece writes the first for a space, so the second stands for it in texts


def translations(folder: pathlib.Path, sentences: list[str]) -> list[str]:
    """Returns the translations of sentences, which one program translates at once."""
    program = jax.export.deserialize(bytearray((folder / "search.jax").read_bytes()))
    with np.load(folder / "params.npz") as file:
        params = list(file.values())
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(folder / "tokenizer.model"))
    tokens = [[*pieces.encode(text.replace(SPACE, ESCAPE)), pieces.eos_id()] for text in sentences]
    source = np.full((len(tokens), max(map(len, tokens))), pieces.pad_id(), np.int32)
    for row, ids in zip(source, tokens, strict=True):
        row[: len(ids)] = ids
    special = {pieces.pad_id(), pieces.bos_id(), pieces.eos_id(), pieces.unk_id()}
    found = np.asarray(program.call(params, source)).tolist()
    return [pieces.decode([x for x in ids if x not in special]).replace(ESCAPE, SPACE) for ids in found]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("sentences", nargs="+")
    args = parser.parse_args()
    print("\n".join(translations(args.folder, args.sentences)))
