"""Fills in a template of k8s/ or sky/ and prints it.

    python launch/render.py launch/k8s/job.yaml NAME=base IMAGE=registry/jaxformer:1 NODES=4 GPUS=8 CPUS=96 \\
        MEMORY=900 CLAIM=runs -- wmt14:base_en_de --out /runs/base --data-dir /runs/data | kubectl apply -f -

The template is parsed as YAML before its values are filled in one by one, so an argument can never become anything but
a value. `${KEY}` stands for a value. `${ARGS}`, as an item of a list, stands for the arguments after `--`, and
`${SHELL_ARGS}` for the same arguments, quoted, in shell code.
"""

import argparse
import pathlib
import re
import shlex
import sys
from typing import Any

import yaml
from names import name

OPTIONAL = {"FLAGS": ""}
PLACEHOLDER = re.compile(r"\$\{([A-Z_]+)\}")
MISREAD = re.compile(r"[-+.0-9].*|[yYnN]", re.DOTALL)
"""Texts such as 1e-4 and y, which PyYAML leaves without quotes, and kubectl would read as numbers and truth values."""


def main() -> int:
    parser = argparse.ArgumentParser(usage="render.py TEMPLATE KEY=VALUE ... -- ARGUMENT ...", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("template")
    parser.add_argument("values", nargs="+", metavar="KEY=VALUE")
    words = [*sys.argv[1:], "--"]
    args = parser.parse_args(words[: words.index("--")])
    arguments = words[words.index("--") + 1 : -1]
    try:
        print(render(pathlib.Path(args.template).read_text(encoding="utf-8"), args.values, arguments), end="")
    except (ValueError, OSError, yaml.YAMLError, argparse.ArgumentTypeError) as error:
        parser.error(str(error))
    return 0


def render(template: str, assignments: list[str], arguments: list[str]) -> str:
    """Returns the template's documents with all values filled in.

    Raises:
      ValueError: a value is missing, unexpected or repeated, or is not the name or number that its key needs.
    """
    keys = set(PLACEHOLDER.findall(template)) - {"ARGS", "SHELL_ARGS"}
    values: dict[str, str | int] = {}
    for key, text in (assignment.partition("=")[::2] for assignment in assignments):
        if key in values:
            raise ValueError(f"{key} is set twice")
        values[key] = checked(key, text)
    "".join([*assignments, *arguments]).encode()  # raises for text that is not valid Unicode
    values = {key: text for key, text in OPTIONAL.items() if key in keys} | values
    if keys != values.keys():
        raise ValueError(f"this template needs {', '.join(sorted(keys))}; got {', '.join(sorted(values))}")
    documents = [fill(document, values, arguments) for document in yaml.safe_load_all(template)]
    return yaml.dump_all(documents, Dumper=Dumper, sort_keys=False, width=110)


class Dumper(yaml.SafeDumper):
    """Writes texts so that every version of YAML reads them as texts."""


def represented(dumper: Dumper, text: str) -> yaml.ScalarNode:
    """Returns a text as YAML, in quotes if it may be misread."""
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style='"' if MISREAD.fullmatch(text) else None)


Dumper.add_representer(str, represented)


def checked(key: str, text: str) -> str | int:
    """Returns a value of the kind that its key needs: a number, a name or any text."""
    if not text:
        raise ValueError(f"{key} is empty")
    if key in ("NODES", "GPUS", "CHIPS", "HOSTS", "SLICES", "CPUS", "MEMORY"):
        if not re.fullmatch(r"[1-9]\d{0,5}", text):
            raise ValueError(f"{key} must be a whole number from 1, got {text!r}")
        return int(text)
    return name(text) if key in ("NAME", "CLAIM") else text


def fill(node: Any, values: dict[str, str | int], arguments: list[str]) -> Any:
    """Returns the same tree with its placeholders filled in."""
    if isinstance(node, dict):
        filled = {key: fill(value, values, arguments) for key, value in node.items()}
        # Kubernetes accepts only text as the value of an environment variable.
        return {key: literal(str(value)) if key == "value" else value for key, value in filled.items()}
    if isinstance(node, list):
        spliced = [literal(argument) for argument in arguments]
        return [x for item in node for x in (spliced if item == "${ARGS}" else [fill(item, values, arguments)])]
    if not isinstance(node, str):
        return node
    if match := PLACEHOLDER.fullmatch(node):
        return values[match[1]]
    texts = {**values, "SHELL_ARGS": shlex.join(arguments)}
    return PLACEHOLDER.sub(lambda match: str(texts[match[1]]), node)


def literal(text: str) -> str:
    """Returns a text for Kubernetes, which would replace $(NAME) by a variable of its pod, and reads $$ as $."""
    return text.replace("$", "$$")


if __name__ == "__main__":
    sys.exit(main())
