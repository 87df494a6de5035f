"""Commands as functions of typed options: a frozen dataclass declares the words that a command takes, with their help.

A field is a `word` or an `option`; one of type bool is a flag, and a tuple takes several words.
``Annotated[TYPE, Word(...)]`` says how a word is read. The docstring of the dataclass is the help of the command, with
its examples. Settings are split off: `jaxformer.cli.arguments` reads them when their configuration is known.
"""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import functools
import inspect
import os
import pathlib
import re
import typing
from collections.abc import Callable, Collection, Sequence
from typing import Annotated, Any, ClassVar, Literal, NoReturn, TypeVar

from jaxformer import files
from jaxformer.errors import ConfigError

OptionsT = TypeVar("OptionsT", bound="Options")
REQUIRED = dataclasses.MISSING


def local_path(text: str) -> pathlib.Path:
    """Returns the path of a local file or folder.

    Raises:
      ConfigError: the text is a URL, or empty, as from an unset shell variable.
    """
    if not text:
        raise ConfigError("the path is empty")
    return files.local_path(text)


def output_file(text: str) -> pathlib.Path:
    """Returns the path of a file to write, after checking that it can be written, before any work is done.

    Raises:
      ConfigError: the path is a URL or a folder, or it may not be written.
    """
    path = local_path(text)
    if os.path.basename(text) in ("", ".", "..") and not path.is_dir():  # a path drops the slash at its end
        raise ConfigError(f"cannot write {text!r}: it names a folder")
    try:
        files.check_writable(path)
    except OSError as error:
        raise ConfigError(f"cannot write {text!r}: {error.strerror}") from error
    return path


def output_folder(text: str) -> pathlib.Path:
    """Returns the path of a folder to write files in, after checking that it is one or can be made.

    Raises:
      ConfigError: the path is a URL or a file, or files cannot be written there.
    """
    path = local_path(text)
    try:
        files.check_writable(path / "file")
    except OSError as error:
        raise ConfigError(f"cannot write in {text!r}: {error.strerror}; name a folder") from error
    return path


def picture(text: str, *, suffixes: Sequence[str] = (".png", ".svg", ".pdf"), kind: str = "picture") -> pathlib.Path:
    """Returns the path of a picture to write, or of another `kind` of file with one of these suffixes."""
    if local_path(text).suffix.lower() not in suffixes:
        raise ConfigError(f"{text}: a {kind} is one of {', '.join(suffixes)}")
    return output_file(text)


def sentence(text: str) -> str:
    """Returns a text, after checking that it is UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ConfigError(f"{text!a} is not UTF-8") from error
    return text


def whole_number(text: str, *, least: int | None = None) -> int:
    """Returns a whole number.

    Raises:
      ConfigError: the text is no whole number, or it is below `least`.
    """
    try:
        number = int(text)
    except ValueError as error:
        raise ConfigError(f"got {text!r}, expected int") from error
    refuse((least is not None and number < least, f"must be at least {least}, got {number}"))
    return number


@dataclasses.dataclass(frozen=True)
class Word:
    """A word of the command line: its name in the help, and the function that reads it."""

    name: str
    read: Callable[[str], object] = str

    def value(self, text: str) -> object:
        """Returns the value of a word, for `argparse`."""
        try:
            return self.read(text)
        except ConfigError as error:
            raise argparse.ArgumentTypeError(str(error)) from error


Run = Annotated[pathlib.Path, Word("RUN", local_path)]
Folder = Annotated[pathlib.Path, Word("FOLDER", local_path)]
File = Annotated[pathlib.Path, Word("FILE", local_path)]
OutputFile = Annotated[pathlib.Path, Word("FILE", output_file)]
OutputFolder = Annotated[pathlib.Path, Word("FOLDER", output_folder)]
Picture = Annotated[pathlib.Path, Word("FILE", picture)]
Page = Annotated[pathlib.Path, Word("FILE", functools.partial(picture, suffixes=(".html", ".htm"), kind="page"))]
Text = Annotated[str, Word("TEXT", sentence)]
Name = Annotated[str, Word("NAME")]
Image = Annotated[str, Word("IMAGE", sentence)]
Attention = Annotated[str, Word("FILE.py:NAME")]
Positive = Annotated[int, Word("N", functools.partial(whole_number, least=1))]
Natural = Annotated[int, Word("N", functools.partial(whole_number, least=0))]


def word(text: str, default: object = REQUIRED) -> Any:
    """Returns a field for a positional word, with its help."""
    return dataclasses.field(default=default, metadata={"help": text})


def option(text: str, default: object = None) -> Any:
    """Returns a field for an option, with its help; the default `REQUIRED` stands for none."""
    return dataclasses.field(default=default, kw_only=True, metadata={"help": text})


def refuse(*cases: tuple[object, str]) -> None:
    """Refuses options that do not go together, by a table of cases and messages."""
    for is_so, message in cases:
        if is_so:
            raise ConfigError(message)


def located(data_dir: str | None, settings: list[str]) -> list[str]:
    """Returns settings with the folder of the corpora, if it is given."""
    refuse((data_dir == "", "the path of --data-dir is empty"))
    if data_dir is None:
        return settings
    return ["--data.directory", data_dir, *settings]


@dataclasses.dataclass(frozen=True)
class Options:
    """The words of a command, except settings."""

    setting_prefix: ClassVar[str] = ""
    """The beginning of each setting that the command takes: ``--decode.``, or ``--`` for all; empty for none."""
    short: ClassVar[tuple[str, ...]] = ()
    """The names in `SHORT` that the command has."""

    @classmethod
    def command(cls) -> str:
        """Returns the name of the command: that of its class."""
        return cls.__name__.lower()


SHORT = {
    "--sample": ("", "sample instead of searching for the most probable"),
    "--temperature": ("X", "divide logits by X before sampling"),
    "--top-k": ("N", "sample from the N most probable tokens"),
    "--top-p": ("X", "sample from the fewest most probable tokens with total probability X (nucleus)"),
    "--min-p": ("X", "sample from the tokens at least X times as probable as the most probable one"),
    "--seed": ("N", "the seed of sampling"),
    "--beam-size": ("N", "the number of hypotheses that the search keeps"),
    "--min-length": ("N", "the minimum number of tokens before the end"),
    "--no-repeat-ngram-size": ("N", "no n-gram of N tokens occurs twice"),
    "--forbid": ("WORDS", "words or phrases that are never generated, separated by commas"),
    "--shortlist": ("FILE", "a file of words; only their pieces are generated"),
    "--mbr": ("N", "the best of N samples by minimum Bayes risk: the one most similar to the others"),
}
"""Settings of the search under shorter names, ``--top-p .9`` for ``--decode.top_p .9``: their values and help."""

SETTINGS = {
    "--decode.": "  --decode.NAME VALUE  a setting of the search: see `jaxformer train RUN/config.json --settings`\n\n",
    "--": "  --NAME VALUE  a setting of the configuration: see `jaxformer train CONFIG --settings`\n\n",
    "": "",
}
"""The settings in the help of a command, by their beginning."""


def command(function: Callable[..., int]) -> Callable[[Sequence[str]], int]:
    """Makes a command, which takes words, of a function of options and, if the command has any, settings as words."""

    @functools.wraps(function)
    def main(words: Sequence[str]) -> int:
        args, settings = parsed(next(iter(typing.get_type_hints(function).values())), words)
        return function(args, settings) if args.setting_prefix else function(args)

    return main


def parsed(kind: type[OptionsT], words: Sequence[str]) -> tuple[OptionsT, list[str]]:
    """Returns the options and the settings in the words of a command.

    Raises:
      ConfigError: an unknown option, or a word that is missing, too many, or wrong.
    """
    parser = _parser(kind)
    settings: list[str] = []
    if kind.setting_prefix == "--":
        read, settings = parser.parse_known_args(words)
        config = list(words).index(read.config) if getattr(read, "config", None) else 0
        if config and words[config - 1] in settings and "=" not in words[config - 1]:  # the word may be its value
            setting = f"{parser.prog} CONFIG ... {words[config - 1]} ..."
            raise ConfigError(f"CONFIG comes before its settings: {setting}")
    else:
        if kind.setting_prefix:
            words, settings = split_settings(words, kind.short)
        read, unknown = parser.parse_known_intermixed_args(words)  # options may stand between positional words
        if unknown and unknown[0].startswith("-"):
            option = unknown[0].partition("=")[0]
            raise ConfigError(f"unknown option {option}{_hint(parser.prog, option, [*parser.names, *kind.short])}")
        if unknown:
            raise ConfigError(f"unexpected argument {unknown[0]!r}")
    values = {name: tuple(value) if isinstance(value, list) else value for name, value in vars(read).items()}
    return kind(**values), settings


class _Parser(argparse.ArgumentParser):
    """A parser with the names of its options, whose errors are one line."""

    names: tuple[str, ...] = ()

    def error(self, message: str) -> NoReturn:
        """Raises the error that the command ends with; only words without a default are missing."""
        _, is_missing, names = message.partition("the following arguments are required: ")
        if is_missing:
            optional = {action.metavar for action in self._actions if action.nargs in ("*", "?")}
            missing = [name for name in names.split(", ") if name not in optional]
            message = f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing"
        message = re.sub(": expected (at least )?one argument$", " needs a value", message)
        raise ConfigError(message.removeprefix("argument "))


def _parser(kind: type[Options]) -> _Parser:
    """Returns the parser of the fields of a dataclass."""
    description, _, examples = inspect.cleandoc(kind.__doc__ or "").partition("\n\n")
    parser = _Parser(
        prog=f"jaxformer {kind.command()}",
        description=" ".join(description.split()),
        epilog=SETTINGS[kind.setting_prefix] + examples,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    hints = typing.get_type_hints(kind, include_extras=True)
    for field in dataclasses.fields(kind):
        shape: dict[str, Any] = _shape(hints[field.name], is_option=field.kw_only is True)
        shape |= {"help": field.metadata["help"].replace("%", "%%"), "default": field.default}
        if isinstance(field.default, tuple):
            shape["default"] = list(field.default)
        is_needed = field.default is REQUIRED
        if field.kw_only:
            name = f"--{field.name.rstrip('_')}".replace("_", "-")  # from_ is --from
            parser.names += (name,)
            parser.add_argument(name, required=is_needed, dest=field.name, **shape)
        elif is_needed:
            parser.add_argument(field.name, **shape)
        else:
            parser.add_argument(field.name, **{"nargs": "?", **shape})
    group = parser.add_argument_group("search") if kind.short else parser
    for name in kind.short:  # only for the help: `split_settings` has taken them
        value, text = SHORT[name]
        shape = {"metavar": value} if value else {"action": "store_true"}
        group.add_argument(name, help=text, default=argparse.SUPPRESS, **shape)
    return parser


def _shape(hint: object, *, is_option: bool) -> dict[str, Any]:
    """Returns the arguments of `add_argument` for a type."""
    members = typing.get_args(hint)
    if type(None) in members:
        return _shape(members[0], is_option=is_option)
    if typing.get_origin(hint) is tuple:
        several = {"nargs": "+", "action": "extend"} if is_option else {"nargs": "*"}
        return {**_shape(members[0], is_option=True), **several}
    if hint is bool:
        return {"action": "store_true"}
    if hint is str:
        return {}
    word = Word("N", whole_number)
    if typing.get_origin(hint) is Literal:
        word = Word(f"{{{','.join(members)}}}", functools.partial(_one_of, members))
    elif typing.get_origin(hint) is Annotated:
        word = members[1]
    return {"metavar": word.name, "type": word.value}


def _one_of(names: Sequence[str], text: str) -> str:
    if text not in names:
        raise ConfigError(f"got {text!r}, expected one of {', '.join(map(repr, names))}")
    return text


def split_settings(words: Sequence[str], short: Collection[str] = ()) -> tuple[list[str], list[str]]:
    """Separates the settings of the search, ``--decode.x 1`` or ``--decode.x=1``; returns the other words first."""
    others: list[str] = []
    settings: list[str] = []
    left = list(words)
    while left:
        word = left.pop(0)
        name, equals, value = word.partition("=")
        if name in short:
            word = f"--decode.{name[2:].replace('-', '_')}{equals}{value}"
            if name != "--sample" and not equals and not left:
                raise ConfigError(f"{name} needs a value")
        if word.startswith("--decode."):
            settings.append(word)
            if not equals and name != "--sample" and left and not left[0].startswith("--"):
                settings.append(left.pop(0))
        elif word == "--":  # no options follow
            return [*others, word, *left], settings
        else:
            others.append(word)
    return others, settings


def _hint(program: str, option: str, names: Sequence[str]) -> str:
    """Returns a hint with the option that an unknown one may mean, such as the name that another toolkit uses."""
    from jaxformer.cli.arguments import ELSEWHERE

    last = option.removeprefix("--").replace("-", "_")
    known = [f"--{ours}".replace("_", "-") for ours, theirs in ELSEWHERE.items() if last in theirs]
    meant = [*({*known} & {*names}), *difflib.get_close_matches(option.replace("_", "-"), names, n=1, cutoff=0.7)]
    return f"; did you mean {meant[0]}?" if meant else f"; {program} --help lists all"
