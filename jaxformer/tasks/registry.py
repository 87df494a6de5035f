"""The tasks by name, and the references to configurations.

A task is imported at first use; listing configurations reads sources without running them.
"""

from __future__ import annotations

import ast
import importlib
import importlib.metadata
import importlib.util
import inspect
import os
import pathlib
import types
from typing import TYPE_CHECKING, Any, TypeAlias

from jaxformer.config import changed, from_data
from jaxformer.digests import short_digest
from jaxformer.errors import ConfigError, did_you_mean
from jaxformer.tasks import own_files
from jaxformer.tasks.config import TaskConfig
from jaxformer.tasks.rundir import FORMAT, holds_run, read_json

if TYPE_CHECKING:
    from jaxformer.tasks.base import Task

CONFIGS = {
    "translation": "TranslationConfig",
    "language_model": "LanguageModelingConfig",
    "masked_language_model": "MaskedLanguageModelingConfig",
    "classification": "ClassificationConfig",
    "tagging": "TaggingConfig",
    "vision": "VisionConfig",
    "captioning": "CaptioningConfig",
}
"""The configuration class of each task that has one in a module without JAX; for other tasks it is ``TASK.config``."""

TASKS = {name: f"jaxformer.tasks.{name}.task" for name in CONFIGS}
"""The module of each task, by the name that is saved in a run's config.json. A module holds its task as ``TASK``.

Another package adds a task by an entry point of the group ``jaxformer.tasks``, or by an entry in this table.
"""

_SIZES = {
    "translation": "tiny small base big",
    "language_model": "tiny small base big",
    "masked_language_model": "tiny base",
    "classification": "tiny average",
    "tagging": "tiny",
    "vision": "tiny convolution base",
    "captioning": "tiny small transformer",
}

BUILTIN = {"demo": "jaxformer.tasks.translation.config"} | {
    name: f"jaxformer.tasks.{task}.config"
    for task, sizes in _SIZES.items()
    for name in (task, *(f"{task}:{size}" for size in sizes.split()))
}
"""The module of each built-in configuration; its function has this name or, with a colon, the name after it."""

GROUP = "jaxformer.tasks"
"""The group of entry points by which other packages add tasks."""

AnyTask: TypeAlias = "Task[Any, Any, Any]"


def get(name: str) -> AnyTask:
    """Returns the task of this name."""
    _add_installed(name)
    if name not in TASKS:
        own = "your own is found by an entry point of the group jaxformer.tasks, or a line in registry.TASKS"
        raise ConfigError(f"unknown task {name!r}{did_you_mean(name, TASKS)}; {own}")
    task = importlib.import_module(TASKS[name]).TASK
    if task.name != name:
        raise ConfigError(
            f"the task {name!r} of {TASKS[name]} takes a {task.config.__name__}, whose task is {task.name!r}, which "
            f'would be trained; give it its own configuration, a subclass with the line task = "{name}"'
        )
    return task


def config_class(name: str) -> type[TaskConfig]:
    """Returns the configuration class of a task; a built-in task itself is not imported."""
    if name in CONFIGS:
        return getattr(importlib.import_module(f"jaxformer.tasks.{name}.config"), CONFIGS[name])
    return get(name).config


def _add_installed(name: str) -> None:
    """Registers the task of this name that an installed package offers as an entry point, if there is one."""
    if name not in TASKS:
        for entry in importlib.metadata.entry_points(group=GROUP, name=name):
            TASKS[name] = entry.module


def task_of(config: TaskConfig) -> AnyTask:
    """Returns the task of a configuration."""
    if not type(config).task:
        raise ConfigError(f"{type(config).__name__} is not the configuration of a task in registry.TASKS")
    task = get(type(config).task)
    if type(config) is not task.config:
        got, expected = (f"{kind.__module__}.{kind.__qualname__}" for kind in (type(config), task.config))
        raise ConfigError(
            f"the task {task.name!r} takes a {expected}, got a {got}; for a task of your own, give "
            f'{type(config).__name__} the line task = "my_task", and name it by the module of the task, such as '
            "my_package.my_task:tiny, not by the path of the file"
        )
    return task


def read_config(path: pathlib.Path) -> TaskConfig:
    """Reads the configuration in a saved config.json, or in the config.json of a run directory.

    Raises:
      ConfigError: there is no such file, or it does not fit this version.
    """
    if path.suffix != ".json" or path.is_dir():
        path = path / "config.json"
        if not path.exists():
            raise ConfigError(f"{path.parent} is not a run: it has no config.json")
    saved = read_json(path)
    name = saved.get("task")
    if "model_type" in saved and name is None:
        raise ConfigError(f"{path.parent} holds a model of Hugging Face: jaxformer convert makes a run of it")
    if not isinstance(name, str):
        raise ConfigError(f"{path} is of task {name!r}; there are {', '.join(sorted(TASKS))}")
    try:
        config = from_data(config_class(name), saved.get("config"))
        if config.attention:
            own_files.check_saved(config.attention, path.parent)
        return config
    except ConfigError as error:
        provenance = path.with_name("provenance.json")
        if saved.get("format") == FORMAT or not provenance.exists():
            raise ConfigError(f"{path}: {error}") from error
        start = (read_json(provenance).get("starts") or [{}])[-1]
        commit = start.get("commit")
        reader = f"that of commit {commit}" if commit else "the one that wrote it"
        raise ConfigError(f"{path} is of another version of jaxformer; {reader} reads it ({error})") from error


def configure(reference: str | os.PathLike[str], **settings: Any) -> TaskConfig:
    """Returns a named configuration, with some settings replaced.

    Args:
      reference: see `resolve`.
      settings: by name; those of a nested section as a mapping: ``data={"source": "my.en"}, train={"steps": 500}``.

    Raises:
      ConfigError: an unknown name or setting (the message suggests the closest), or a value of the wrong type.

    >>> configure("demo", train={"steps": 20}).train.steps
    20
    """
    return changed(started(changed(resolve(os.fspath(reference)), settings)), settings)


def started(config: TaskConfig, out: pathlib.Path | None = None) -> TaskConfig:
    """Returns a configuration with the settings that must agree with the run that `init_from` names, if there is one.

    Args:
      out: the run to train, whose own settings are taken if it has begun, because the other may be gone by then.

    Raises:
      ConfigError: there is no such run, or `out` holds something else.
    """
    if not config.init_from or type(config).with_settings_of is TaskConfig.with_settings_of:
        return config
    run = out if out is not None and holds_run(out) else split_init(config.init_from)[0]
    return config.with_settings_of(read_config(run))


def split_init(text: str) -> tuple[pathlib.Path, str]:
    """Returns the run and the checkpoint of ``RUN[:CHECKPOINT]``; a directory with the whole name is the run."""
    if pathlib.Path(text).is_dir():
        return pathlib.Path(text), "best"
    run, colon, checkpoint = text.rpartition(":")
    return pathlib.Path(run if colon else text), (colon and checkpoint) or "best"


def resolve(reference: str) -> TaskConfig:
    """Returns the configuration that a reference names.

    A reference is, in this order: a saved ``config.json``; ``path/file.py[:function]``; a built-in name such as
    ``translation:tiny``; a name below ``./experiments`` such as ``translation/multi30k:en_de`` or ``multi30k:en_de``;
    ``package.module:function``; the name of a task of another package, for the defaults of its settings. The function
    may be omitted if the file has only one that is public. Only the named file is run.

    Raises:
      ConfigError: there is no such configuration; the message suggests the closest name.
    """
    try:
        return _resolve(reference)
    except SyntaxError as error:
        raise ConfigError(f"{reference}: {error.filename}, line {error.lineno}: {error.msg}") from error
    except SystemExit as error:  # a program named by mistake; its exit code would become ours
        raise ConfigError(f"{reference} ends the process; a configuration is a function that returns one") from error


def _resolve(reference: str) -> TaskConfig:
    path, _, function = reference.partition(":")
    if "\0" in reference:
        raise ConfigError(f"no configuration {reference!r}: it holds a NUL")
    if reference.endswith(".json"):
        return read_config(pathlib.Path(reference))
    if path.endswith(".py"):
        return _call(_load_file(pathlib.Path(path)), function, reference)
    if reference in BUILTIN:
        return _call(importlib.import_module(BUILTIN[reference]), function or path, reference)
    if file := _below_experiments(path):
        return _call(_load_file(file), function, reference)
    if function and all(part.isidentifier() for part in path.split(".")):
        try:
            return _call(importlib.import_module(path), function, reference)
        except ModuleNotFoundError as error:
            hint = _hint(reference) if error.name == path else ""  # as in a mistyped translation:tiny
            raise ConfigError(f"no configuration {reference!r}: {error}{hint}") from error
    _add_installed(reference)
    if reference in TASKS:
        return get(reference).config()
    if (saved := pathlib.Path(reference, "config.json")).is_file():
        raise ConfigError(f"no configuration {reference!r}; the settings of this run are {saved}")
    raise ConfigError(f"no configuration {reference!r}{_hint(reference)}")


def _hint(reference: str) -> str:
    """Returns the most similar name; if none is similar, all names and, without ``./experiments``, what has more."""
    hint = did_you_mean(reference, (name for name, _ in catalog()))
    if hint.startswith("; did you mean") or pathlib.Path("experiments").is_dir():
        return hint
    return f"; experiments such as multi30k:en_de come with a clone of jaxformer: run the command in it{hint}"


def catalog() -> list[tuple[str, str]]:
    """Returns names and summaries of all configurations: built-in, of other packages' tasks, below ``./experiments``.

    Files are parsed, not run. A file that cannot be parsed is listed with the reason.
    """
    entries = []
    for name, module in BUILTIN.items():
        function = getattr(importlib.import_module(module), name.rpartition(":")[2])
        entries.append((name, function.__doc__.splitlines()[0]))
    installed = importlib.metadata.entry_points(group=GROUP)
    entries += [(entry.name, f"The task of {entry.module}.") for entry in installed if entry.name not in BUILTIN]
    root = pathlib.Path("experiments")
    for file in sorted(root.glob("**/*.py")):
        if file.name.startswith("_") or not file.is_file():
            continue
        path = file.relative_to(root).with_suffix("").as_posix()
        try:
            entries += [(f"{path}:{name}", summary) for name, summary in _functions(file)]
        except (OSError, SyntaxError, ValueError) as error:
            reason = (str(error).splitlines() or [""])[0]
            entries.append((path, f"cannot be read: {type(error).__name__}: {reason}"))
    return entries


def _functions(file: pathlib.Path) -> list[tuple[str, str]]:
    """Returns the public functions of a file that need no arguments, with the first lines of their docstrings.

    A function that is annotated to return something other than a configuration is left out.
    """
    entries = []
    for node in ast.parse(file.read_bytes(), filename=str(file)).body:
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
            num_required = len(node.args.posonlyargs) + len(node.args.args) - len(node.args.defaults)
            returned = "Config" if node.returns is None else ast.unparse(node.returns).strip("'\"")
            if num_required == 0 and None not in node.args.kw_defaults and returned.endswith("Config"):
                entries.append((node.name, (ast.get_docstring(node) or "").partition("\n")[0]))
    return entries


def _below_experiments(name: str) -> pathlib.Path | None:
    root = pathlib.Path("experiments").resolve()
    direct = (root / f"{name}.py").resolve()
    if direct.is_relative_to(root) and direct.is_file():
        return direct
    if "/" in name or not name.isidentifier():
        return None
    return next(iter(sorted(root.glob(f"*/{name}.py"))), None)


def _load_file(path: pathlib.Path) -> types.ModuleType:
    source = own_files.read(path, what="configuration file")
    return own_files.run(path, source, name=f"jaxformer_config_{short_digest([str(path.resolve())])}")


def _call(module: types.ModuleType, function: str, reference: str) -> TaskConfig:
    functions = {name: x for name, x in vars(module).items() if isinstance(x, types.FunctionType) and name[0] != "_"}
    public = [name for name, x in functions.items() if x.__module__ == module.__name__ and not _required(x)]
    if not function and len(public) != 1:
        raise ConfigError(f"{reference} holds {', '.join(public) or 'no function'}; choose one with {reference}:NAME")
    function = function or public[0]
    if function not in public:
        if function in functions and (needed := _required(functions[function])):
            raise ConfigError(f"{reference}: {function} needs {', '.join(needed)}; a configuration takes no arguments")
        raise ConfigError(f"{reference}: no function {function!r}{did_you_mean(function, public)}")
    config = functions[function]()
    if not isinstance(config, TaskConfig):
        raise ConfigError(f"{reference} returned {type(config).__name__}, which is not the configuration of a task")
    return config


def _required(function: types.FunctionType) -> list[str]:
    """Returns the names of the parameters without a default."""
    parameters = inspect.signature(function).parameters.values()
    return [p.name for p in parameters if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
