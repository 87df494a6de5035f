"""The rules of a ``tokenizer.json`` with some of its tokens."""

from __future__ import annotations

from collections.abc import Mapping

from jaxformer.errors import ConfigError
from jaxformer.files import JsonObject


def with_ids(rules: JsonObject, numbers: Mapping[int, int]) -> JsonObject:
    """Returns the content of a ``tokenizer.json`` with the tokens in `numbers`, which get new ids.

    A merge of BPE stays if both parts and the result do.
    """
    added = [
        token | {"id": numbers[token["id"]]} for token in rules.get("added_tokens") or () if token["id"] in numbers
    ]
    cut = {**rules, "added_tokens": added, "model": _model(rules["model"], numbers)}
    if rules.get("post_processor"):
        cut["post_processor"] = _template(rules["post_processor"], numbers)
    return cut


def _model(model: JsonObject, numbers: Mapping[int, int]) -> JsonObject:
    vocabulary = model.get("vocab")
    if isinstance(vocabulary, list):
        kept = [entry for token, entry in enumerate(vocabulary) if token in numbers]
        unknown = model.get("unk_id")
        return {**model, "vocab": kept, "unk_id": None if unknown is None else numbers[unknown]}
    if not isinstance(vocabulary, dict):
        raise ConfigError(f"a tokenizer.json of kind {model.get('type')} cannot be trimmed")
    known = {piece: numbers[token] for piece, token in vocabulary.items() if token in numbers}
    cut: JsonObject = {**model, "vocab": known}
    if "merges" in model:
        inside = model.get("continuing_subword_prefix") or ""
        pairs = ((merge, merge.split(" ") if isinstance(merge, str) else merge) for merge in model["merges"])
        cut["merges"] = [x for x, (a, b) in pairs if {a, b, a + b.removeprefix(inside)} <= known.keys()]
    return cut


def _template(rule: JsonObject, numbers: Mapping[int, int]) -> JsonObject:
    """Returns the rule for the tokens around a text."""
    rule = dict(rule)
    if "processors" in rule:
        rule["processors"] = [_template(part, numbers) for part in rule["processors"]]
    for name in ("sep", "cls"):
        if name in rule:
            piece, token = rule[name]
            rule[name] = [piece, numbers[token]]
    if isinstance(special := rule.get("special_tokens"), dict):
        rule["special_tokens"] = {
            name: {**about, "ids": [numbers[token] for token in about["ids"]]} for name, about in special.items()
        }
    return rule
