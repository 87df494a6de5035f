"""``jaxformer sizes``: tables, plain data, and wrong names."""

import json

import pytest

from jaxformer.cli import main as cli
from jaxformer.cli import sizes


def said(capsys, *arguments):
    assert cli.main(["sizes", *arguments]) == 0
    return capsys.readouterr().out


def test_tables(capsys):
    text = said(capsys, "gpt2", "bert-base")
    first, second, *_ = text.split("\n\n")
    names = [line.split("|")[1].strip() for line in first.splitlines()]
    assert names == ["model", "---------", "gpt2", "bert-base"]
    assert len({len(line) for line in first.splitlines()}) == len({len(line) for line in second.splitlines()}) == 1
    assert "| 124,439,808 |     117 M |      +6.4% |" in first
    cells = [cell.strip() for cell in second.splitlines()[2].split("|")]
    assert cells[1:8] == ["gpt2", "1,024", "0.854", "1.99", "0.249", "0.0377", "40 GB"]
    assert [cell.strip() for cell in second.splitlines()[3].split("|")][5:7] == ["", ""]  # nothing to decode


def test_json(capsys):
    data = json.loads(said(capsys, "t5-11b", "gopher-280b", "--json"))
    assert list(data) == ["t5-11b", "gopher-280b"]
    assert data["t5-11b"]["parameters"] == data["t5-11b"]["released"] == 11_307_321_344
    assert data["gopher-280b"]["run"]["device_hours"] == 3_735_552
    assert data["gopher-280b"]["total_bytes"]["training"]["float32"] == 16 * data["gopher-280b"]["parameters"]
    assert data["gopher-280b"]["config"]["positions"] == {"kind": "transformer_xl"}


@pytest.mark.parametrize(
    ("value", "text"), [(117e6, "117 M"), (1.542e9, "1.542 B"), (280e9, "280 B"), (8.3e9, "8.3 B")]
)
def test_counts(value, text):
    assert sizes.count(value) == text


def test_numbers():
    assert [sizes.number(value) for value in (0.01234, 9.87, 123.4, 4321.0)] == ["0.0123", "9.87", "123", "4,321"]
