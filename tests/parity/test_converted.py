"""Runs made of models and tokenizers that Hugging Face's library saved: text in, the same text and numbers out."""

import numpy as np
import pytest

import jaxformer
from jaxformer.tasks import pretrained
from tests.data import pretrained as tokenizers
from tests.parity.copied import D, F, L, N, randomized, t5

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install torch")
transformers = pytest.importorskip("transformers", reason="transformers is not installed: pip install transformers")
pytestmark = pytest.mark.parity

TEXT = "The old man sees the house."


def saved(folder, model, content, names):
    """Saves a model and a tokenizer of theirs."""
    folder.mkdir()
    tokenizers.write(folder, content, names)
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"), **names)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return tokenizer


def test_gpt2_generates_and_scores(tmp_path):
    shape = {"vocab_size": 325, "n_embd": D, "n_layer": L, "n_head": N, "n_inner": F, "n_positions": 64}
    model = randomized(transformers.GPT2LMHeadModel(transformers.GPT2Config(**shape)))
    names = dict.fromkeys(("eos_token", "bos_token", "unk_token", "pad_token"), tokenizers.END)
    tokenizer = saved(tmp_path / "gpt2", model, tokenizers.byte_level(), names)
    pretrained.convert(tmp_path / "gpt2", tmp_path / "run")
    decode = {"temperature": 0.0, "max_tokens": 12}
    generator = jaxformer.load(tmp_path / "run", decode=decode)
    ids = tokenizer(TEXT, return_tensors="pt")["input_ids"]
    theirs = model.generate(ids, max_new_tokens=12, do_sample=False, bad_words_ids=[[0]], pad_token_id=0)
    assert generator.generate([TEXT]) == [tokenizer.decode(theirs[0], clean_up_tokenization_spaces=False)]
    log_probs = torch.log_softmax(model(ids).logits[0, :-1], -1)[torch.arange(ids.shape[1] - 1), ids[0, 1:]]
    np.testing.assert_allclose(generator.score([TEXT])[0].token_log_probs, log_probs.detach().numpy(), atol=2e-5)


@pytest.mark.parametrize("beams", [1, 3])
def test_gpt2_stops(tmp_path, beams):
    """The sixth token of a greedy continuation is made the end token, and their search stops at it as ours does."""
    shape = {"vocab_size": 325, "n_embd": D, "n_layer": L, "n_head": N, "n_inner": F, "n_positions": 64}
    model = randomized(transformers.GPT2LMHeadModel(transformers.GPT2Config(**shape)))
    names = dict.fromkeys(("eos_token", "bos_token", "unk_token", "pad_token"), tokenizers.END)
    tokenizer = saved(tmp_path / "gpt2", model, tokenizers.byte_level(), names)
    ids = tokenizer(TEXT, return_tensors="pt")["input_ids"]
    options = {"max_new_tokens": 12, "do_sample": False, "bad_words_ids": [[0]], "pad_token_id": 0}
    end = int(model.generate(ids, **options)[0, ids.shape[1] + 5])
    names["eos_token"] = tokenizer.convert_ids_to_tokens(end)
    tokenizers.write(tmp_path / "gpt2", tokenizers.byte_level(), names)
    pretrained.convert(tmp_path / "gpt2", tmp_path / "run")
    decode = {"temperature": 0.0, "max_tokens": 12, "beam_size": beams}
    ((found,),) = jaxformer.load(tmp_path / "run", decode=decode).continuations([TEXT])
    more = {"num_beams": beams, "early_stopping": True, "eos_token_id": end, "length_penalty": 1.0}
    theirs = model.generate(ids, **options, **more, return_dict_in_generate=True, output_scores=True)
    assert list(found.tokens) == [x for x in theirs.sequences[0, ids.shape[1] :].tolist() if x]
    if beams > 1:
        assert found.score == pytest.approx(float(theirs.sequences_scores[0]), abs=1e-4)


def test_bert_fills(tmp_path):
    shape = {"vocab_size": 150, "hidden_size": D, "num_hidden_layers": L, "num_attention_heads": N}
    config = transformers.BertConfig(**shape, intermediate_size=F, max_position_embeddings=64)
    model = randomized(transformers.BertForMaskedLM(config))
    tokenizer = saved(tmp_path / "bert", model, tokenizers.word_piece(), tokenizers.BERT)
    pretrained.convert(tmp_path / "bert", tmp_path / "run")
    text = "The old [MASK] sees the house."
    ids = tokenizer(text, return_tensors="pt")["input_ids"]
    (place,) = (ids[0] == tokenizer.mask_token_id).nonzero()[0]
    probabilities = model(ids).logits[0, place].softmax(-1)
    best = probabilities.topk(5)
    (found,) = jaxformer.load(tmp_path / "run").fill(text, top_k=5)
    assert [piece for piece, _ in found] == tokenizer.convert_ids_to_tokens(best.indices.tolist())
    np.testing.assert_allclose([p for _, p in found], best.values.detach().numpy(), atol=1e-5)


def test_t5_translates(tmp_path):
    names = {"eos_token": tokenizers.END, "pad_token": "<pad>", "unk_token": tokenizers.END}
    ids = {"pad_token_id": 1, "decoder_start_token_id": 1, "eos_token_id": 0}
    model = t5("1.1", vocab_size=325, **ids)
    tokenizer = saved(tmp_path / "t5", model, tokenizers.byte_level(pad="<pad>"), names)
    pretrained.convert(tmp_path / "t5", tmp_path / "run")
    decode = {"beam_size": 3, "length_penalty": 1.0, "max_length": 12, "forced_end": "never"}
    ((*found,),) = jaxformer.load(tmp_path / "run", decode=decode).candidates([TEXT], n_best=3)
    source = torch.cat([tokenizer(TEXT, return_tensors="pt")["input_ids"], torch.tensor([[0]])], 1)
    options = {"max_new_tokens": 12, "num_beams": 3, "num_return_sequences": 3, "early_stopping": True}
    options |= {"return_dict_in_generate": True, "output_scores": True, "do_sample": False}
    theirs = model.generate(source, bad_words_ids=[[1]], **options)
    sequences = [[x for x in row[1:].tolist() if x != 1] for row in theirs.sequences]
    assert [list(candidate.tokens) for candidate in found] == sequences
    np.testing.assert_allclose([c.score for c in found], theirs.sequences_scores.numpy(), atol=1e-4)
