"""The losses of every kind of model are kept exactly, and a change of one is seen."""

import json

import pytest

from benchmarks import first_losses
from benchmarks.first_losses import KINDS, TEXT, Kind, compare, main
from jaxformer.cli.arguments import resolved

TINY = f"{TEXT} --train.steps 3 --train.validate-every 3 --optimizer.warmup_steps 1"


@pytest.mark.full
def test_a_training_is_repeated_bit_for_bit_and_a_change_is_seen(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(KINDS, "tiny", Kind(TINY))
    before, after = tmp_path / "before.json", tmp_path / "after.json"
    words = ["--here", "--only", "tiny", "--out"]
    assert main([*words, str(before)]) == 0
    found = json.loads(before.read_text())["kinds"]["tiny"]
    assert (len(found["losses"]), len(found["validation"])) == (3, 1)
    assert f"  step   3  {found['losses'][2]}" in capsys.readouterr().out

    assert main([*words, str(after), "--compare", str(before)]) == 0
    assert capsys.readouterr().out.endswith("tiny: equal to the bit\n")

    monkeypatch.setitem(KINDS, "tiny", Kind(f"{TINY} --optimizer.b1 0.5"))
    assert main([*words, str(after), "--compare", str(before)]) == 1
    out, err = capsys.readouterr()
    assert "tiny: differs by at most" in out
    assert err == "error: beyond the tolerance of 1e-06: tiny\n"

    monkeypatch.setattr(first_losses, "train", None)  # what follows is read from the file
    assert main([*words, str(after), "--compare", str(before), "--tolerance", "1"]) == 0


RESULT = {
    "losses": [(4.0).hex(), (2.0).hex()],
    "validation": [(1.0).hex()],
    "paths": "p",
    "bits": "b",
    "parameters": ["a"],
}


@pytest.mark.parametrize(
    ("change", "said", "far"),
    [
        ({}, "equal to the bit", 0),
        ({"bits": "c"}, "losses equal to the bit, the last parameters not", 0),
        ({"losses": [(4.0).hex(), (2.5).hex()]}, "differs by at most 0.2, first at step 2", 0.2),
        ({"losses": [(4.0).hex(), "nan"]}, "differs by at most inf, first at step 2", float("inf")),
        ({"validation": [(0.5).hex()]}, "differs by at most 0.5, first at validation 1", 0.5),
        ({"validation": []}, "1 validation before, 0 now", float("inf")),
        (
            {"paths": "q", "parameters": ["b", "c"]},
            "equal to the bit; other paths of parameters: 1 gone (a), 2 new (b)",
            0,
        ),
    ],
)
def test_the_difference_in_words(change, said, far):
    assert compare(RESULT, RESULT | change) == (said, far)


@pytest.mark.full
@pytest.mark.parametrize("name", KINDS)
def test_every_kind_has_settings_that_exist(name):
    reference, *words = KINDS[name].words.split()
    resolved(reference, words)
