"""Small tokenizers in the formats of pretrained models: byte-level BPE, and WordPiece."""

import json
from collections.abc import Sequence

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from jaxformer import demo

LINES = [pair.english for pair in demo.generate(200)]
END = "<|endoftext|>"
BERT = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": "[MASK]"}


def byte_level(*, begin: str = "", pad: str = "", end: bool = False) -> str:
    """Returns the content of a ``tokenizer.json`` like that of GPT-2; with `begin`, of Llama 3; with both, BART."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet, special = pre_tokenizers.ByteLevel.alphabet(), [END, *filter(None, (begin, pad))]
    trainer = trainers.BpeTrainer(
        vocab_size=325, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(LINES, trainer)
    if begin:
        pairs = [(name, tokenizer.token_to_id(name)) for name in (begin, END)]
        single = f"{begin} $0 {END}" if end else f"{begin} $0"
        tokenizer.post_processor = processors.TemplateProcessing(single=single, special_tokens=pairs)
    tokenizer.enable_truncation(5)
    tokenizer.enable_padding(length=9)
    return tokenizer.to_str()


def word_piece(special: Sequence[str] = tuple(BERT.values())) -> str:
    """Returns the content of a ``tokenizer.json`` like that of BERT."""
    tokenizer = Tokenizer(models.WordPiece(unk_token=special[1]))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(vocab_size=150, special_tokens=list(special), show_progress=False)
    tokenizer.train_from_iterator(LINES, trainer)
    pairs = [(name, tokenizer.token_to_id(name)) for name in special[2:4]]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{special[2]} $0 {special[3]}", special_tokens=pairs
    )
    return tokenizer.to_str()


def llama() -> str:
    """The content of a ``tokenizer.json`` like that of Llama 2: characters, with a space put before each text."""
    names = ["<unk>", "<s>", "</s>"]
    vocabulary = {piece: token for token, piece in enumerate([*names, "\u2581", *"abx"])}
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}
    rules = [{"type": "Prepend", "prepend": "\u2581"}, replace]
    return json.dumps(
        {
            "added_tokens": [{"id": i, "content": name, "special": True, **flags} for i, name in enumerate(names)],
            "normalizer": {"type": "Sequence", "normalizers": rules},
            "model": {"type": "BPE", "vocab": vocabulary, "merges": [], "unk_token": "<unk>", "byte_fallback": True},
        }
    )


def unigram(special: Sequence[str], *, pre_tokenizer: pre_tokenizers.PreTokenizer) -> str:
    """Returns the content of a ``tokenizer.json`` like that of T5, Pegasus or XLM-RoBERTa; "</s>" is after a text."""
    pieces = [(piece, 0.0) for piece in special] + [("\u2581", -2.0), *((letter, -3.0) for letter in "abx")]
    tokenizer = Tokenizer(models.Unigram([*pieces, ("\u2581a", -1.0)], unk_id=special.index("<unk>")))
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.add_special_tokens(list(special))
    pairs = [("</s>", special.index("</s>"))]
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=pairs)
    return tokenizer.to_str()


def write(folder, content, names):
    """Writes the files of a tokenizer into a folder."""
    (folder / "tokenizer.json").write_text(content)
    (folder / "tokenizer_config.json").write_text(json.dumps(names))
