"""A trained run written to CTranslate2: both find the same translations with the same scores."""

import os
import pathlib

import numpy as np
import pytest

import jaxformer
from jaxformer import demo
from jaxformer.tasks import pretrained
from jaxformer.tasks.translation import Translator

ctranslate2 = pytest.importorskip("ctranslate2", reason="CTranslate2 is not installed: pip install ctranslate2")
pytestmark = pytest.mark.parity

NUMBER = 200
POSITIONS = 512
TIE = 1e-4


@pytest.fixture(scope="module")
def translator(tmp_path_factory):
    """That of the trained run that JAXFORMER_RUN names, else of a short training of the demo."""
    if run := os.environ.get("JAXFORMER_RUN"):
        return jaxformer.load(run)
    out = tmp_path_factory.mktemp("runs") / "run"
    sizes = {"d_model": 64, "d_ff": 128}
    train = {"steps": 300, "validate_every": 150, "checkpoint_every": 150}
    config = jaxformer.configure("demo", model=sizes, train=train, data={"grammar_pairs": 8000, "vocab_size": 1000})
    jaxformer.train(config, out)
    return jaxformer.load(out)


def written(translator: Translator, folder: pathlib.Path) -> pathlib.Path:
    """The run in CTranslate2's format."""
    from benchmarks.sides.ctranslate2_model import of_run

    folder.mkdir()
    of_run(translator, positions=POSITIONS).save(str(folder))
    return folder


@pytest.mark.parametrize(("norm", "tie"), [("post", "all"), ("post", "none"), ("pre", "all"), ("pre", "none")])
def test_an_exported_folder_through_its_own_converter(tmp_path, norm, tie):
    """Greedy translations of 100 sentences by this library, transformers and CTranslate2, from a trained run."""
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    pytest.importorskip("torch", reason="PyTorch is not installed")
    sizes = {"d_model": 48, "num_heads": 4, "d_ff": 96, "num_encoder_layers": 2, "num_decoder_layers": 2}
    model = sizes | {"norm_position": norm, "tie_embeddings": tie}
    data = {"grammar_pairs": 6000, "vocab_size": 800}
    train = {"steps": 200, "validate_every": 200, "checkpoint_every": 200, "tensorboard": False}
    config = jaxformer.configure("demo", model=model, train=train, data=data, optimizer={"warmup_steps": 60})
    jaxformer.train(config, tmp_path / "run")
    assert pretrained.export(tmp_path / "run", tmp_path / "out") == {"post": "marian", "pre": "pegasus"}[norm]
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    texts = [pair.english for pair in demo.generate(20_000)[-100:]]
    decode = {"search": {"kind": "beam", "beam_size": 1}, "max_length": 40, "forced_end": "never", "max_extra": 40}
    own = jaxformer.load(tmp_path / "run", decode=decode)
    found = [own.tokenizer.pieces(one.tokens) for (one,) in own.candidates(texts, n_best=1)]
    batch = tokenizer(texts, return_tensors="pt", padding=True)
    theirs = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "out").eval()
    rows = theirs.generate(batch["input_ids"], attention_mask=batch["attention_mask"], num_beams=1, max_length=41)
    of_text = lambda row: [x for x in tokenizer.convert_ids_to_tokens(row) if x not in ("<pad>", "</s>")]
    assert sum(one == of_text(row[1:].tolist()) for one, row in zip(found, rows, strict=True)) >= 99  # but a near tie
    ctranslate2.converters.TransformersConverter(str(tmp_path / "out")).convert(str(tmp_path / "theirs"))
    translator = ctranslate2.Translator(str(tmp_path / "theirs"), device="cpu", inter_threads=1)
    sources = [tokenizer.convert_ids_to_tokens(tokenizer(text)["input_ids"]) for text in texts]
    results = translator.translate_batch(sources, beam_size=1, max_decoding_length=40)
    assert sum(one == result.hypotheses[0] for one, result in zip(found, results, strict=True)) >= 99


def test_all_hypotheses_of_200_sentences(translator, tmp_path):
    """Beam 4, lengths counted with the end: tokens of all four, but for near ties, which are counted."""
    theirs = ctranslate2.Translator(str(written(translator, tmp_path / "model")), device="cpu", inter_threads=1)
    texts = [pair.english for pair in demo.generate(20_000)[-NUMBER:]]
    tokens = [translator.tokenizer.pieces(ids) for ids in translator.tokenizer.encode(texts)]
    given = {"num_hypotheses": 4, "beam_size": 4, "length_penalty": 1.0, "min_decoding_length": 0}
    options = given | {"max_decoding_length": POSITIONS, "return_scores": True}
    expected = theirs.translate_batch(tokens, **options)
    found = translator.candidates(texts, n_best=4)
    equal = ties = 0
    for own, other in zip(found, expected, strict=True):
        pieces = [translator.tokenizer.pieces(candidate.tokens) for candidate in own]
        if pieces == other.hypotheses:
            equal += 1
            np.testing.assert_allclose([c.score for c in own], other.scores, atol=1e-4)
            continue
        gaps = np.abs(np.diff(sorted([c.score for c in own] + list(other.scores))))
        ties += bool((gaps[gaps > 1e-6] < TIE).any())
    print(f"{equal} of {NUMBER} equal, {ties} with near ties")
    assert equal >= 0.97 * NUMBER
    assert equal + ties == NUMBER
