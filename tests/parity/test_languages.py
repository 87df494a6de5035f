"""M2M100, NLLB and mBART-50 of Hugging Face's library as runs: the same tokens, texts and numbers, and back."""

import json

import numpy as np
import pytest

import jaxformer
from jaxformer import demo
from jaxformer.tasks import pretrained
from tests.parity.copied import D, F, L, N, randomized
from tests.tokenizers import multilingual

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install torch")
transformers = pytest.importorskip("transformers", reason="transformers is not installed: pip install transformers")
pytestmark = pytest.mark.parity

LINES = [pair.english for pair in demo.generate(20)]
TEXTS = [*LINES, "  two  \u4e00 spaces ", "", "Hello </s> x", "tr\u00e9s \ufb01n"]


def model_of(kind, rows, tokenizer):
    """Their model, tiny and random, with the search of its folder."""
    shape = {"vocab_size": rows, "d_model": D, "encoder_layers": L, "decoder_layers": L, "max_position_embeddings": 64}
    for side in ("encoder", "decoder"):
        shape |= {f"{side}_attention_heads": N, f"{side}_ffn_dim": F}
    name, more = ("MBart", {"scale_embedding": True}) if kind == "mbart50" else ("M2M100", {})
    config = getattr(transformers, f"{name}Config")(**shape, **multilingual.IDS, **more)
    model = randomized(getattr(transformers, f"{name}ForConditionalGeneration")(config))
    search = {"max_length": 14, "early_stopping": True, "bad_words_ids": [[1]], "forced_eos_token_id": 2}
    model.generation_config = transformers.GenerationConfig(**multilingual.IDS, **search, num_beams=3)
    return model


@pytest.mark.parametrize("kind", multilingual.CODES)
def test_translations_into_a_language(tmp_path, kind):
    folder, (source, target, _) = tmp_path / "model", multilingual.CODES[kind]
    folder.mkdir()
    rows = multilingual.make(folder, kind)
    if kind == "nllb":  # their class takes all its languages, unless some are named
        names = {"tokenizer_class": "NllbTokenizer", "additional_special_tokens": [*multilingual.CODES[kind]]}
        (folder / "tokenizer_config.json").write_text(json.dumps(names))
    given = {"m2m100": "M2M100Tokenizer", "nllb": "NllbTokenizer", "mbart50": "MBart50Tokenizer"}[kind]
    tokenizer = getattr(transformers, given).from_pretrained(folder, src_lang=source)
    model = model_of(kind, rows, tokenizer)
    model.save_pretrained(folder)
    pretrained.convert(folder, tmp_path / "run")
    translator = jaxformer.load(tmp_path / "run").to(target, source)
    assert [ids.tolist() for ids in translator._tokens(TEXTS, "source", 1, None)] == tokenizer(TEXTS)["input_ids"]
    ids = translator.tokenizer.encode(TEXTS, "target")
    assert [translator.tokenizer.decode(own) for own in ids] == tokenizer.batch_decode(ids, skip_special_tokens=True)
    forced = translator.tokenizer.tags[target]
    for beams in (1, 3):
        one = jaxformer.load(tmp_path / "run", decode={"search": {"beam_size": beams}}).to(target, source)
        for text, found in zip(LINES[:4], one.candidates(LINES[:4], n_best=beams), strict=True):
            options = {"num_beams": beams, "num_return_sequences": beams, "return_dict_in_generate": True}
            options |= {"forced_bos_token_id": forced, "output_scores": True, "do_sample": False}
            theirs = model.generate(tokenizer(text, return_tensors="pt")["input_ids"], **options)
            sequences = [[x for x in row[1:].tolist() if x not in (1, 2)] for row in theirs.sequences]
            assert [list(candidate.tokens) for candidate in found] == sequences
            if beams > 1:
                np.testing.assert_allclose([c.score for c in found], theirs.sequences_scores.numpy(), atol=1e-4)
    pretrained.export(tmp_path / "run", tmp_path / "out")
    again = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    assert (type(again).__name__, again.src_lang) == (given, source)
    assert again(TEXTS)["input_ids"] == tokenizer(TEXTS)["input_ids"]
    same = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "out").eval()
    inputs = {"input_ids": tokenizer(LINES[:1], return_tensors="pt")["input_ids"]}
    inputs["decoder_input_ids"] = torch.tensor([[2, forced, 7, 8]])
    torch.testing.assert_close(same(**inputs).logits, model(**inputs).logits, atol=0, rtol=0)
