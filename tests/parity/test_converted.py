"""Runs made of models and tokenizers that Hugging Face's library saved: text in, the same text and numbers out."""

import json

import numpy as np
import pytest
from tokenizers import pre_tokenizers

import jaxformer
from jaxformer.tasks import pretrained
from jaxformer.tokenizers.folders import read_tokenizer
from jaxformer.tokenizers.tokenizer_json import tokenizer_files
from tests.parity.copied import D, F, L, N, randomized, t5
from tests.tokenizers import marian
from tests.tokenizers import pretrained as tokenizers

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
    decode = {"search": "greedy", "max_tokens": 12}
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
    decode = {"search": {"kind": "beam", "beam_size": beams}, "max_tokens": 12}
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
    names = tokenizer.convert_ids_to_tokens(best.indices.tolist())  # "##s" within a word is "s" here, "cat" "▁cat"
    assert [piece.removeprefix("▁") for piece, _ in found] == [name.removeprefix("##") for name in names]
    np.testing.assert_allclose([p for _, p in found], best.values.detach().numpy(), atol=1e-5)


def test_t5_translates(tmp_path):
    names = {"eos_token": tokenizers.END, "pad_token": "<pad>", "unk_token": tokenizers.END}
    ids = {"pad_token_id": 1, "decoder_start_token_id": 1, "eos_token_id": 0}
    model = t5("1.1", vocab_size=325, **ids)
    tokenizer = saved(tmp_path / "t5", model, tokenizers.byte_level(pad="<pad>"), names)
    pretrained.convert(tmp_path / "t5", tmp_path / "run")
    search = {"kind": "beam", "beam_size": 3, "length_penalty": 1.0}
    decode = {"search": search, "max_length": 12, "forced_end": "never"}
    ((*found,),) = jaxformer.load(tmp_path / "run", decode=decode).candidates([TEXT], n_best=3)
    source = torch.cat([tokenizer(TEXT, return_tensors="pt")["input_ids"], torch.tensor([[0]])], 1)
    options = {"max_new_tokens": 12, "num_beams": 3, "num_return_sequences": 3, "early_stopping": True}
    options |= {"return_dict_in_generate": True, "output_scores": True, "do_sample": False}
    theirs = model.generate(source, bad_words_ids=[[1]], **options)
    sequences = [[x for x in row[1:].tolist() if x != 1] for row in theirs.sequences]
    assert [list(candidate.tokens) for candidate in found] == sequences
    np.testing.assert_allclose([c.score for c in found], theirs.sequences_scores.numpy(), atol=1e-4)


def compared(translator, tokenizer, model, text, **options):
    """Compares the three best of a beam with theirs; returns theirs as text."""
    ((*found,),) = translator.candidates([text], n_best=3)
    source = tokenizer(text, return_tensors="pt")["input_ids"]
    options |= {"num_return_sequences": 3, "return_dict_in_generate": True, "output_scores": True, "do_sample": False}
    theirs = model.generate(source, **options)
    fill = {model.config.pad_token_id, model.config.eos_token_id}
    sequences = [[x for x in row[1:].tolist() if x not in fill] for row in theirs.sequences]
    assert [list(candidate.tokens) for candidate in found] == sequences
    np.testing.assert_allclose([c.score for c in found], theirs.sequences_scores.numpy(), atol=1e-4)
    return tokenizer.batch_decode(theirs.sequences, skip_special_tokens=True), [c.text for c in found]


def test_bart_translates_with_its_own_search(tmp_path):
    """Each text begins with <s>, which the decoder does not choose; the settings of their search are in the folder."""
    search = {"num_beams": 3, "length_penalty": 2.0, "max_length": 14, "min_length": 5, "no_repeat_ngram_size": 3}
    ids = {"pad_token_id": 2, "bos_token_id": 1, "eos_token_id": 0, "decoder_start_token_id": 0}
    ids |= {"forced_bos_token_id": 1, "forced_eos_token_id": 0}
    shape = {"vocab_size": 325, "d_model": D, "max_position_embeddings": 64, "encoder_layers": L, "decoder_layers": L}
    shape |= {f"{side}_attention_heads": N for side in ("encoder", "decoder")}
    shape |= {f"{side}_ffn_dim": F for side in ("encoder", "decoder")}
    model = randomized(transformers.BartForConditionalGeneration(transformers.BartConfig(**shape, **ids)))
    model.generation_config = transformers.GenerationConfig(**ids, **search, early_stopping=True, bad_words_ids=[[2]])
    names = dict(zip(("eos_token", "bos_token", "pad_token"), (tokenizers.END, "<s>", "<pad>"), strict=True))
    content = tokenizers.byte_level(begin="<s>", pad="<pad>", end=True)
    tokenizer = saved(tmp_path / "bart", model, content, names | {"unk_token": tokenizers.END})
    tokenizer._tokenizer.no_truncation()
    tokenizer._tokenizer.no_padding()
    pretrained.convert(tmp_path / "bart", tmp_path / "run")
    theirs, ours = compared(jaxformer.load(tmp_path / "run"), tokenizer, model, TEXT)
    assert ours == theirs


@pytest.mark.parametrize(("early", "renormalize"), [(False, True), (True, False)])
def test_marian_translates(tmp_path, early, renormalize):
    """Its two sentencepiece models, the code of a language, and the search of its settings."""
    (tmp_path / "marian").mkdir()
    vocabulary = marian.write(tmp_path / "marian")
    pad = vocabulary["<pad>"]
    ids = {"pad_token_id": pad, "eos_token_id": 0, "decoder_start_token_id": pad, "forced_eos_token_id": 0}
    shape = {"vocab_size": len(vocabulary), "d_model": D, "encoder_layers": L, "decoder_layers": L}
    shape |= {f"{side}_attention_heads": N for side in ("encoder", "decoder")}
    shape |= {f"{side}_ffn_dim": F for side in ("encoder", "decoder")}
    config = transformers.MarianConfig(**shape, **ids, scale_embedding=True, activation_function="swish")
    model = randomized(transformers.MarianMTModel(config))
    search = {"num_beams": 3, "max_length": 12, "early_stopping": early, "bad_words_ids": [[pad]]}
    search["renormalize_logits"] = renormalize
    model.generation_config = transformers.GenerationConfig(**ids, **search)
    model.save_pretrained(tmp_path / "marian")
    files = [str(tmp_path / "marian" / name) for name in ("source.spm", "target.spm", "vocab.json")]
    clean_up = {"clean_up_tokenization_spaces": renormalize}
    (tmp_path / "marian" / "tokenizer_config.json").write_text(json.dumps(clean_up))
    tokenizer = transformers.MarianTokenizer(*files, **clean_up)
    pretrained.convert(tmp_path / "marian", tmp_path / "run")
    translator = jaxformer.load(tmp_path / "run")
    texts = [pair.english for pair in marian.PAIRS[:50]] + [f"{marian.CODE} The cat. ", "  two  \u4e00 spaces", ""]
    assert [[*ids, 0] for ids in map(list, translator.tokenizer.encode(texts))] == tokenizer(texts)["input_ids"]
    french = [*(pair.french for pair in marian.PAIRS[:50]), "Le chat dort . Le chat ."]
    own = translator.tokenizer.encode(french, "target")
    assert [[*ids, 0] for ids in map(list, own)] == tokenizer(text_target=french)["input_ids"]
    assert [translator.tokenizer.decode(ids) for ids in own] == tokenizer.batch_decode(own, skip_special_tokens=True)
    theirs, ours = compared(translator, tokenizer, model, texts[0])
    assert ours == theirs


@pytest.mark.parametrize("legacy", [True, False, None])
def test_a_llama_has_the_tokens_of_its_class(tmp_path, legacy):
    """The class replaces the rules of ``tokenizer.json``, and adds the tokens of ``tokenizer_config.json``."""
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    mark = {"content": "ab", "lstrip": True, "rstrip": True, "normalized": True, "single_word": True, "special": False}
    names = {"tokenizer_class": "LlamaTokenizer", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    names |= {"added_tokens_decoder": {"7": mark}, **({} if legacy is None else {"legacy": legacy})}
    names |= {"chat_template": "{{ messages }}", "model_max_length": 99}
    content = json.loads(tokenizers.llama())
    content["model"]["vocab"] |= {"ab": 7}
    tokenizers.write(tmp_path, json.dumps(content), names)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    ours, _ = read_tokenizer(tmp_path, {"model_type": "llama"})
    (tmp_path / "out").mkdir()
    for name, file in tokenizer_files(ours).items():
        (tmp_path / "out" / name).write_bytes(file)
    again = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    assert (again.chat_template, again.model_max_length) == ("{{ messages }}", 99)
    for text in ("a b", " a", "  a ", "", " ", "a</s>b", "a </s> b", "x ab x", "xabx", "\u2581a"):
        ids = theirs(text, add_special_tokens=False)["input_ids"]
        assert ours.encode([text])[0].tolist() == again(text)["input_ids"] == ids


SPACED = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()])
OTHER = pre_tokenizers.Metaspace(prepend_scheme="first")


@pytest.mark.parametrize("pre_tokenizer", [SPACED, OTHER], ids=["published", "other"])
@pytest.mark.parametrize("family", ["t5", "mt5", "pegasus", "xlm-roberta", "camembert"])
def test_unigram_families_have_the_tokens_of_their_class(tmp_path, family, pre_tokenizer):
    """So does a folder that is exported again, which names no such class."""
    special = ["<pad>", "</s>", "<unk>", "<mask_1>", "<mask_2>", "<s>", "<mask>"]
    (tmp_path / "config.json").write_text(json.dumps({"model_type": family}))
    names = {"eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
    others = {"t5": {"extra_ids": 0}, "mt5": {"extra_ids": 0}, "pegasus": {"offset": 2}}.get(family, {})
    tokenizers.write(tmp_path, tokenizers.unigram(special, pre_tokenizer=pre_tokenizer), names | others)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    ours, _ = read_tokenizer(tmp_path, {"model_type": family, "decoder_start_token_id": 0})
    (tmp_path / "out").mkdir()
    for name, file in tokenizer_files(ours).items():
        (tmp_path / "out" / name).write_bytes(file)
    (tmp_path / "out" / "config.json").write_text(json.dumps({"model_type": family}))
    again = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    for text in ("a b", " a", "  ab  x ", "", " ", "a</s>b", "a </s> b\nx", "\u2581a", "a\tb\u00a0x"):
        ids = theirs(text, add_special_tokens=False)["input_ids"]
        assert ours.encode([text])[0].tolist() == again(text, add_special_tokens=False)["input_ids"] == ids


@pytest.mark.parametrize("lstrip", [False, True])
def test_a_masked_language_model_fills_texts_with_spaces(tmp_path, lstrip):
    """The rules put a space before a text, and not before its parts."""
    names = dict(zip(tokenizers.BERT, ("<pad>", "<unk>", "<s>", "</s>", "<mask>"), strict=True))
    content = json.loads(tokenizers.llama())
    content["model"]["vocab"] |= {"<pad>": 7, "<mask>": 8}
    added = [content["added_tokens"][0] | {"id": i, "content": name} for name, i in (("<pad>", 7), ("<mask>", 8))]
    content["added_tokens"] += [token | {"lstrip": lstrip} for token in added]
    content["normalizer"] = None
    content["pre_tokenizer"] = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "first", "split": False}
    shape = {"vocab_size": 9, "hidden_size": D, "num_hidden_layers": L, "num_attention_heads": N}
    config = transformers.BertConfig(**shape, intermediate_size=F, max_position_embeddings=64)
    model = randomized(transformers.BertForMaskedLM(config))
    tokenizer = saved(tmp_path / "bert", model, json.dumps(content), names)
    pretrained.convert(tmp_path / "bert", tmp_path / "run")
    predictor = jaxformer.load(tmp_path / "run")
    for text in ("a [MASK] b", "[MASK]b", "a[MASK] x", " x [MASK]", "a b  [MASK]  x"):
        ids = tokenizer(text.replace("[MASK]", "<mask>"), return_tensors="pt")["input_ids"]
        ids = torch.cat([torch.tensor([[1]]), ids, torch.tensor([[2]])], 1)
        best = model(ids).logits[0, ids[0] == 8].softmax(-1).topk(3)
        (found,) = predictor.fill(text, top_k=3)
        np.testing.assert_allclose([p for _, p in found], best.values[0].detach().numpy(), atol=1e-5)
