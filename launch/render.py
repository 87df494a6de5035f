"""Fills in a template of k8s/ or sky/ and prints it.

    python launch/render.py launch/k8s/job.yaml NAME=base IMAGE=registry/jaxformer:1 NODES=4 GPUS=8 CLAIM=runs \\
        -- wmt14:base_en_de --out /runs/base --data-dir /runs/data --mesh fsdp=32 | kubectl apply -f -

The template is read as YAML first and filled in afterward, value by value, so nothing that is given can become
anything but a value.  `${KEY}` stands for a value, `${ARGS}` as an item of a list for the arguments after `--`, and in
the text of a shell `${SHELL_ARGS}` for the same, quoted.
"""

import argparse
import pathlib
import re
import shlex
import sys
from typing import Any

import yaml
from names import name

PLACE = re.compile(r"\$\{([A-Z_]+)\}")


def main() -> int:
    parser = argparse.ArgumentParser(usage="render.py TEMPLATE KEY=VALUE ... -- ARGUMENT ...", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("template")
    parser.add_argument("values", nargs="+", metavar="KEY=VALUE")
    words = [*sys.argv[1:], "--"]
    known = parser.parse_args(words[: words.index("--")])
    arguments = words[words.index("--") + 1 : -1]
    try:
        print(render(pathlib.Path(known.template).read_text(encoding="utf-8"), known.values, arguments), end="")
    except (ValueError, OSError, yaml.YAMLError, argparse.ArgumentTypeError) as error:
        parser.error(str(error))
    return 0


def render(template: str, values: list[str], arguments: list[str]) -> str:
    """The template's documents, filled in.

    Raises:
      ValueError: a value too many or too few, or that is no name or number where one is wanted.
    """
    given: dict[str, str | int] = {}
    for key, text in (value.partition("=")[::2] for value in values):
        if key in given:
            raise ValueError(f"{key} twice")
        given[key] = checked(key, text)
    "".join([*values, *arguments]).encode()  # refuses what is no text
    wanted = set(PLACE.findall(template)) - {"ARGS", "SHELL_ARGS"}
    if wanted != given.keys():
        raise ValueError(f"this template wants {', '.join(sorted(wanted))}; got {', '.join(sorted(given))}")
    return yaml.safe_dump_all(
        [fill(part, given, arguments) for part in yaml.safe_load_all(template)], sort_keys=False, width=110
    )


def checked(key: str, text: str) -> str | int:
    """A value by the kind of its key: numbers, names, anything else as it is."""
    if not text:
        raise ValueError(f"{key} is empty")
    if key in ("NODES", "GPUS", "CHIPS", "HOSTS", "SLICES"):
        if not re.fullmatch(r"[1-9]\d{0,5}", text):
            raise ValueError(f"{key} is a number from 1, got {text!r}")
        return int(text)
    return name(text) if key in ("NAME", "CLAIM") else text


def fill(part: Any, given: dict[str, str | int], arguments: list[str]) -> Any:
    """The same tree with its places filled in."""
    if isinstance(part, dict):
        filled = {key: fill(value, given, arguments) for key, value in part.items()}
        # Kubernetes wants a text as the value of a variable.
        return {key: str(value) if key == "value" else value for key, value in filled.items()}
    if isinstance(part, list):
        # Kubernetes would replace $(NAME) in an argument by a variable of its pod, and reads $$ as $.
        spliced = [argument.replace("$", "$$") for argument in arguments]
        return [x for item in part for x in (spliced if item == "${ARGS}" else [fill(item, given, arguments)])]
    if not isinstance(part, str):
        return part
    if whole := PLACE.fullmatch(part):
        return given[whole[1]]
    texts = {**given, "SHELL_ARGS": shlex.join(arguments)}
    return PLACE.sub(lambda found: str(texts[found[1]]), part)


if __name__ == "__main__":
    sys.exit(main())
