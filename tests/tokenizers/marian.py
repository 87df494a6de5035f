"""A small tokenizer in Marian's format: two sentencepiece models and a vocabulary."""

import io
import json

import sentencepiece

from jaxformer import demo

PAIRS = demo.generate(250)
CODE = ">>fra<<"


def write(folder):
    """Writes the files of a tokenizer into a folder; returns its vocabulary."""
    pieces = {"</s>": None, "<unk>": None, CODE: None}
    for side, texts in (("source", [pair.english for pair in PAIRS]), ("target", [pair.french for pair in PAIRS])):
        model = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(texts), model_writer=model, vocab_size=120, minloglevel=2, num_threads=1
        )
        (folder / f"{side}.spm").write_bytes(model.getvalue())
        processor = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
        pieces |= {processor.id_to_piece(token): None for token in range(3, processor.vocab_size() - 5)}
    vocabulary = {piece: token for token, piece in enumerate([*pieces, "<pad>"])}
    (folder / "vocab.json").write_text(json.dumps(vocabulary, ensure_ascii=False))
    return vocabulary
