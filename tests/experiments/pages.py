"""The page of an experiment and its record."""

import json
import pathlib
import types
from typing import Any


def published(experiment: types.ModuleType) -> tuple[str, Any]:
    """Returns the text of the README.md and the content of the results.json of an experiment."""
    folder = pathlib.Path(str(experiment.__file__)).parent
    results = (folder / "results" / "results.json").read_text(encoding="utf-8")
    return (folder / "README.md").read_text(encoding="utf-8"), json.loads(results)
