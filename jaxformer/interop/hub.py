"""Pretrained models by their names at huggingface.co, or at the address in HF_ENDPOINT.

This file is the only one that imports the package huggingface_hub, of the extra `pretrained`, which keeps what it
downloads in a cache of its own. Nothing else of a repository than the files in `FILES` is downloaded.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import hashlib
import os
import pathlib
import re
import sys

from jaxformer import lazy
from jaxformer.errors import DataError

FILES = (
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "model.safetensors.index.json",
    "model-*-of-*.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "source.spm",
    "target.spm",
    "sentencepiece.bpe.model",
    "vocab.json",
    "target_vocab.json",
    "chat_template.jinja",
    "additional_chat_templates/*.jinja",
    "adapter_config.json",
)
"""The patterns of the files that a conversion reads, if only to refuse them."""

_NAME = re.compile(r"(\w[\w.-]*/\w[\w.-]*?)(?:@(.+))?", re.ASCII)


@dataclasses.dataclass(frozen=True)
class Snapshot:
    """A model's files, as they are at one commit."""

    name: str
    folder: pathlib.Path
    """The folder in the cache."""
    revision: str
    """The commit."""
    hashes: dict[str, str]
    """The SHA-256 of each file."""


def snapshot(path: str | os.PathLike[str]) -> Snapshot | None:
    """Returns the files of a model that is given by its name, ``ORG/NAME`` or ``ORG/NAME@revision``, else None.

    A path that exists is no name. Without a connection, or with HF_HUB_OFFLINE=1, the files of the cache are taken.

    Raises:
      ConfigError: the package huggingface_hub is not installed.
      DataError: the model or its revision is not found, is gated or renamed, has no safetensors, or cannot be reached.
    """
    text = os.fspath(path)
    match = _NAME.fullmatch(text)
    if match is None or pathlib.Path(text).exists():
        return None
    lazy.require("huggingface_hub", what=f"{text} is not a folder here, and a model by name needs", extra="pretrained")
    name, revision = match[1], match[2] or "main"
    folder = _downloaded(name, revision)
    paths = {x.relative_to(folder).as_posix(): x for x in sorted(folder.rglob("*")) if x.is_file()}
    read = lambda file: any(fnmatch.fnmatchcase(file, pattern) for pattern in FILES)  # others may have come before
    hashes = {file: _hash(x) for file, x in paths.items() if read(file)}
    return Snapshot(name, folder, folder.name, hashes)


def _downloaded(name: str, revision: str) -> pathlib.Path:
    import huggingface_hub as library
    from huggingface_hub import constants, errors, utils

    utils.logging.set_verbosity_error()  # its warnings would come before the one line of an error
    if not sys.stderr.isatty():
        utils.disable_progress_bars()
    refused = {
        errors.GatedRepoError: f"is gated: accept its terms at {constants.ENDPOINT}/{name}, then `hf auth login`",
        errors.RepositoryNotFoundError: "is no folder here and no public model; for a private one, `hf auth login`",
        errors.RevisionNotFoundError: f"has no revision {revision} any more, or never had",
        errors.HFValidationError: "is not the name of a model",
        errors.LocalEntryNotFoundError: "cannot be reached, and is not in the cache",
    }
    try:
        try:
            about = library.HfApi().model_info(name, revision=revision)
        except Exception as error:
            if isinstance(error, tuple(refused)):
                raise
            about = None  # no connection; the cache may have it
        if about is not None:
            _check(name, about.id, [file.rfilename for file in about.siblings or ()])
        folder = pathlib.Path(library.snapshot_download(name, revision=revision, allow_patterns=list(FILES)))
    except DataError:
        raise
    except Exception as error:  # of several packages for HTTP, by version
        reasons = [reason for kind, reason in refused.items() if isinstance(error, kind)]
        reason = reasons[0] if reasons else f"cannot be downloaded: {str(error).partition(chr(10))[0]}"
        raise DataError(f"{name} {reason}") from None
    if about is not None and folder.name != about.sha:
        raise DataError(f"{name} has changed: its revision {revision} moved while it was read; try again")
    return folder


def _check(name: str, actual: str, files: list[str]) -> None:
    """Checks the name and the files of a repository, before anything is downloaded."""
    if actual.lower() != name.lower():
        raise DataError(f"{name} is now called {actual}; give that name if it is the model you mean")
    if not any(file.startswith("model") and file.endswith(".safetensors") for file in files):
        pickled = next((file for file in files if file.endswith((".bin", ".pt", ".pth"))), "")
        reason = f"; {pickled} may be a pickle, which can run code" if pickled else ""
        raise DataError(f"{name} has no weights in safetensors{reason}")


def _hash(path: pathlib.Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
