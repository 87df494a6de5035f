"""Settings of a search by their last names: ``--decode.top_p .9`` for ``--decode.search.top_p .9``."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence

from jaxformer.cli.arguments import words_of
from jaxformer.cli.command import refuse
from jaxformer.config import choices_of, defaults_of, kind_of, types_of
from jaxformer.errors import ConfigError
from jaxformer.tasks.config import GenerationConfig, MinimumRisk, TaskConfig

Form = tuple[str, ...]
"""The kind of a search, and for minimum Bayes risk that of its candidates."""


def placed(config: TaskConfig, arguments: Sequence[str], *, command: str, is_ensemble: bool = False) -> list[str]:
    """Returns settings of `decode` with full names, and with the search that has them, for `arguments.override`.

    This is the search that ``--decode.search`` names; otherwise that of the run if it has all of the settings, or the
    first that does. It keeps the settings that both have. ``--decode.sample``, ``--decode.mbr N`` and
    ``--decode.temperature 0`` name a search, too.

    Raises:
      ConfigError: no search has all of the settings, or the command would ignore one.
    """
    decode = getattr(config, "decode", None)
    words = {name.removeprefix("decode."): values for name, values in words_of(arguments).items()}
    if not isinstance(decode, GenerationConfig) or not words:
        return list(arguments)
    _check_used(decode, words, command, is_ensemble)
    chosen, forms, current = _chosen(words), _forms(decode), (kind_of(decode.search),)
    if isinstance(decode.search, MinimumRisk):
        current += (kind_of(decode.search.candidates),)
    known = {name for form in forms.values() for name in form} - {*defaults_of(type(decode))}
    names = [name for name in words if name in known]
    form = _fitting(forms, current, names, chosen)
    settings = forms[form]
    result: list[str] = []
    if form != current:
        for choice, kind in zip(("search", "search.candidates"), form, strict=False):
            result += [f"--decode.{choice}", kind]
        for name, path in forms[current].items():
            if name not in words and settings.get(name, path) != path:
                result += [f"--decode.{settings[name]}", str(functools.reduce(getattr, path.split("."), decode))]
    for name, (written, *values) in words.items():
        result += [f"--decode.{settings[name]}" if name in names else written, *values]
    return result


def _chosen(words: dict[str, list[str]]) -> Form:
    """Returns the search that settings name, and removes these from them; nothing if they name none."""
    named: dict[str, str] = {}
    if "search" in words:
        named["--decode.search"] = words.pop("search")[-1]
    if "sample" in words:
        valued = "--sample takes no value; another search has a name, as in --decode.search beam"
        refuse((words.pop("sample")[1:] not in ([], ["True"], ["true"]), valued))
        named["--sample"] = "sample"
    if "mbr" in words:
        words["num_candidates"] = words.pop("mbr")
        named["--mbr"] = "minimum_risk"
    if words.get("temperature", ["", ""])[-1] in ("0", "0.0", "0."):
        del words["temperature"]
        named["--temperature 0"] = "beam" if "beam_size" in words else "greedy"
    two = f"{' and '.join(named)} name two searches, {' and '.join(named.values())}"
    refuse((len({*named.values()}) > 1, two))
    candidates = [words.pop(name)[-1] for name in ("candidates", "search.candidates") if name in words]
    if candidates:
        named.setdefault("--decode.search.candidates", "minimum_risk")
    return (*{*named.values()}, *candidates)


def _forms(decode: GenerationConfig) -> dict[Form, dict[str, str]]:
    """Returns the dotted names of the settings of every search, by their last names."""
    forms: dict[Form, dict[str, str]] = {}
    for kind, search in choices_of(types_of(type(decode))["search"]).items():
        settings = {name: f"search.{name}" for name in defaults_of(search)}
        forms[kind,] = settings
        for each, part in choices_of(types_of(search).get("candidates")).items():
            forms[kind, each] = settings | {name: f"search.candidates.{name}" for name in defaults_of(part)}
            forms.pop((kind,), None)
    return forms


def _fitting(forms: Mapping[Form, Mapping[str, str]], current: Form, names: Sequence[str], chosen: Form) -> Form:
    """Returns the search that has these settings: the run's own, or the first."""
    allowed = [form for form in sorted(forms, key=current.__ne__) if form[: len(chosen)] == chosen]
    if not chosen and {*names} <= {"seed", "renormalize", "utility"}:  # which do not tell what to search for
        allowed = [current]
    fitting = [form for form in allowed if all(name in forms[form] for name in names)]
    if fitting:
        return fitting[0]
    kinds = lambda forms: " or ".join(dict.fromkeys(forms))
    if not allowed:
        raise ConfigError(f"decode.search: got {' of '.join(chosen)}, expected {kinds(form[0] for form in forms)}")
    foreign = [name for name in names if not any(name in forms[form] for form in allowed)] or names
    # A setting of the candidates is of their search, the second of the form.
    places = {name: {form: path[name] for form, path in forms.items() if name in path} for name in foreign}
    about = [
        f"decode.{name} is for search {kinds(form[path.count('.') - 1] for form, path in paths.items())}"
        for name, paths in places.items()
    ]
    others = {form[-1] for form in allowed}
    raise ConfigError(f"{', '.join(about)}, {f'not {kinds(others)}' if len(others) == 1 else 'and no search has both'}")


def _check_used(decode: GenerationConfig, names: Mapping[str, object], command: str, is_ensemble: bool) -> None:
    """Checks that a command uses the settings that were passed to it."""
    for name in names:
        no_effect = f"decode.{name} has no effect:"
        refuse(
            (name not in decode.without_search.get(command, names), f"{no_effect} {command} generates no text"),
            (name == "average" and not is_ensemble, f"{no_effect} it needs --ensemble"),
            (name in decode.of_training, f"{no_effect} it is for training"),
            (name in decode.of_scores and command != "evaluate", f"{no_effect} it is for evaluate and training"),
        )
