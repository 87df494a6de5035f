"""Scores equal those of sacrebleu's own command, and say how they were computed."""

import subprocess
import sys

import pytest

from jaxformer.evaluation.scores import bleu, chrf, moses_bleu

HYPOTHESES = ["The cat sat on the mat.", "He's reading a book!", "Two dogs ran across the green field , quickly."]
REFERENCES = ["The cat sits on the mat.", "He is reading a book!", "Two dogs ran over the green field, quickly."]


@pytest.mark.parametrize(("metric", "score"), [("bleu", bleu), ("chrf", chrf)])
def test_equals_the_command(tmp_path, metric, score):
    (tmp_path / "hyp").write_text("\n".join(HYPOTHESES) + "\n")
    (tmp_path / "ref").write_text("\n".join(REFERENCES) + "\n")
    command = [sys.executable, "-m", "sacrebleu", "ref", "-i", "hyp", "-m", metric, "--score-only", "--beam-size", "2"]
    printed = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert score(HYPOTHESES, REFERENCES).value == pytest.approx(float(printed), abs=0.005)


def test_signatures_name_the_recipe():
    assert "case:mixed" in bleu(HYPOTHESES, REFERENCES).signature
    assert "tok:13a" in bleu(HYPOTHESES, REFERENCES).signature
    assert "case:lc" in bleu(HYPOTHESES, REFERENCES, lowercase=True).signature
    found = moses_bleu(HYPOTHESES, REFERENCES, language="en")
    assert "lower-cased, sacremoses" in found.signature
    assert "tok:none" in found.signature
    assert str(found).startswith("BLEU (lower-cased Moses)")


def test_moses_bleu_ignores_case_and_spacing_of_punctuation():
    """Moses splits punctuation off, so a space before a comma costs nothing."""
    assert moses_bleu(["Two Dogs ran , quickly."], ["two dogs ran, quickly ."], language="en").value == pytest.approx(
        100
    )
    assert bleu(["Two Dogs ran , quickly."], ["two dogs ran, quickly ."]).value < 100


def test_a_perfect_translation_scores_100():
    assert bleu(REFERENCES, REFERENCES).value == pytest.approx(100)
    assert chrf(REFERENCES, REFERENCES).value == pytest.approx(100)


def test_refusals():
    with pytest.raises(ValueError, match="2 hypotheses, but 3 references"):
        bleu(HYPOTHESES[:2], REFERENCES)
    with pytest.raises(ValueError, match="at least one sentence"):
        chrf([], [])
