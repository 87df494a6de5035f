"""The texts of the published folder: the model card and the attribution."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from experiments.tables import table

ATTRIBUTION = """The parameters, the tokenizer and the test sentences are made from pairs of the Tatoeba Project.

Source: tatoeba.org, as selected by www.manythings.org/anki (deu-eng, 2018-05-13), by the contributors of Tatoeba.
License of the pairs: CC BY 2.0, https://creativecommons.org/licenses/by/2.0/
Changes: a translator was trained on most of the pairs, some of them joined; test.en and test.de have 3,000 others, each
with the first of its translations. The parameters and the tokenizer are published under the same license.
"""
"""The notice that must stay with the folder."""

CARD = """---
license: cc-by-2.0
language: [en, de]
pipeline_tag: translation
---

# A small English-German translator

It translates short everyday sentences, of up to about 30 words, from English to German. It has {parameters:,}
parameters, in bfloat16 ({bytes:,} bytes), and was trained on two CPU cores in {minutes:.0f} minutes.

```sh
jaxformer convert {name} --out runs/en-de
jaxformer translate runs/en-de "{example}"
jaxformer evaluate runs/en-de --files {name}/test.en {name}/test.de
```

## Scores

{scores}

A hash has chosen the sentences of test.en from those of Tatoeba. Neither they nor any of their translations are in the
training data, but their neighbors are: many sentences of Tatoeba differ in one word. Scores on other text are lower.

## Training data

{pairs:,} lines: English-German pairs of Tatoeba, and lines of two to four of them joined, so that it can translate
more than one short sentence at a time. No other text was used. ATTRIBUTION.txt must stay with the folder.

## Limits

Tatoeba has few words outside of everyday life, and errors. Expect wrong translations of names, numbers and words that
it does not have, and lost parts of long sentences. Nothing was done against biases of the data, such as those of
gender. Do not use it where an error does harm.

## Provenance

provenance.json has the commit, the command, the configuration, the versions and the hashes of data and tokenizer.
The SHA-256 of model.safetensors is {sha256}.
"""


def card(found: Mapping[str, Any]) -> str:
    """Returns the model card of a record."""
    given = {name: found[name] for name in ("parameters", "bytes", "pairs", "sha256")}
    minutes, example = found["seconds"] / 60, next(iter(found["examples"]))
    return CARD.format(**given, minutes=minutes, example=example, name="en-de-tatoeba", scores=scores(found))


def scores(found: Mapping[str, Any]) -> str:
    """Returns the scores of a record and its examples, as Markdown.

    >>> score = {"name": "BLEU", "value": 30.0, "signature": "tok:13a", "interval": [28.5, 31.25]}
    >>> print(scores({"scores": [score], "examples": {"Hi.": "Hallo."}}))
    | test | score | 95% interval |
    |---|---|---|
    | BLEU | 30.00 | 28.5 to 31.2 |
    <BLANKLINE>
    `tok:13a`
    <BLANKLINE>
    | English | German |
    |---|---|
    | Hi. | Hallo. |
    """
    rows = []
    for score in found["scores"]:
        between = "{:.1f} to {:.1f}".format(*score["interval"]) if score["interval"] else ""
        rows.append((score["name"], f"{score['value']:.2f}", between))
    signatures = ", ".join(f"`{score['signature']}`" for score in found["scores"])
    examples = table(("English", "German"), *found["examples"].items())
    return "\n\n".join([table(("test", "score", "95% interval"), *rows), signatures, examples])
