"""Small tokenizers of M2M100, NLLB and mBART-50, in the files of their repositories."""

import io
import json

import sentencepiece
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers, trainers

from tests.tokenizers.pretrained import LINES, write

SPECIAL = ["<s>", "<pad>", "</s>", "<unk>"]
IDS = {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 2}
CODES = {
    "m2m100": ("en", "de", "fr"),
    "nllb": ("eng_Latn", "deu_Latn", "fra_Latn"),
    "mbart50": ("en_XX", "de_DE", "fr_XX"),
}
"""Languages by the kind of tokenizer; the first is that of sources, unless another one is chosen."""


def make(folder, kind):
    """Writes the files of a tokenizer into a folder; returns the number of its tokens."""
    if kind == "nllb":
        tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True))
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
        tokenizer.train_from_iterator(
            LINES, trainers.BpeTrainer(vocab_size=150, special_tokens=SPECIAL, show_progress=False)
        )
        tokenizer.add_special_tokens([AddedToken(code, special=True) for code in (*CODES[kind], "<mask>")])
        write(folder, tokenizer.to_str(), {"tokenizer_class": "NllbTokenizer"})
        return tokenizer.get_vocab_size()
    model, algorithm = io.BytesIO(), {"m2m100": "bpe", "mbart50": "unigram"}[kind]
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(LINES),
        model_writer=model,
        vocab_size=120,
        model_type=algorithm,
        minloglevel=2,
        num_threads=1,
    )
    (folder / "sentencepiece.bpe.model").write_bytes(model.getvalue())
    if kind == "mbart50":
        (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "MBart50Tokenizer"}))
        return 4 + 117 + 52 + 1
    processor = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    pieces = [*SPECIAL, *(processor.id_to_piece(token) for token in range(3, processor.vocab_size()))]
    (folder / "vocab.json").write_text(json.dumps({piece: token for token, piece in enumerate(pieces)}))
    return len(pieces) + 100 + 8
