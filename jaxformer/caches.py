"""The user's cache: one folder for everything that can be recomputed, such as compiled programs and tokens.

It is JAXFORMER_CACHE, else ``jaxformer`` in XDG_CACHE_HOME, else ``~/.cache/jaxformer``. According to the XDG Base
Directory Specification, an empty or relative XDG_CACHE_HOME counts as unset.
"""

from __future__ import annotations

import logging
import os
import pathlib

from jaxformer.errors import ConfigError
from jaxformer.files import local_path

logger = logging.getLogger(__name__)

OTHERS, GROUP, STICKY = 0o002, 0o020, 0o1000


def user_cache(kind: str) -> pathlib.Path | None:
    """Returns the folder `kind` of the user's cache, which is created if it is missing.

    Its contents are trusted, and compiled programs are even executed, so a folder that other users own or can write to
    is not used. If no folder can be used, a warning gives the reason, and the result is None.

    Raises:
      ConfigError: JAXFORMER_CACHE is not an absolute path.
    """
    base = _base()
    problem = _problem(base / kind) if base else "there is no home directory"
    if base is None or problem:
        logger.warning("no cache of %s: %s; JAXFORMER_CACHE=/a/folder/of/yours names another place", kind, problem)
        return None
    return base / kind


def data_cache(setting: str) -> pathlib.Path | None:
    """Returns the folder of tokenized data: the setting's, or by default the one in the user's cache."""
    return local_path(setting) if setting else user_cache("data")


def _base() -> pathlib.Path | None:
    """Returns the folder of the user's cache, or None if there is no home directory to put it in."""
    if explicit := os.environ.get("JAXFORMER_CACHE"):
        path = local_path(explicit)
        if not path.is_absolute():
            raise ConfigError(f"JAXFORMER_CACHE must be an absolute path, got {explicit!r}")
        return path
    shared = pathlib.Path(os.environ.get("XDG_CACHE_HOME", ""))
    if shared.is_absolute():
        return shared / "jaxformer"
    home = pathlib.Path(os.path.expanduser("~"))
    if home.is_absolute() and home != home.parent and home.is_dir():
        return home / ".cache" / "jaxformer"
    return None


def _problem(folder: pathlib.Path) -> str:
    """Creates a folder; returns the reason why it cannot be used, or an empty string."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder = folder.resolve()
        for place in (folder, *folder.parents):
            about = place.stat()
            # Users who can write to a parent could replace this folder, unless the parent is sticky, like /tmp.
            if about.st_uid not in (0, os.geteuid()):
                return f"{place} belongs to another user"
            if about.st_mode & OTHERS and (place == folder or not about.st_mode & STICKY):
                return f"other users can write in {place}"
        if folder.stat().st_mode & GROUP:
            return f"the group can write in {folder}"
    except (OSError, RuntimeError) as error:  # before Python 3.13, a cycle of links raises a RuntimeError
        return f"cannot make {folder}: {getattr(error, 'strerror', None) or error}"
    if not os.access(folder, os.W_OK | os.X_OK, effective_ids=os.access in os.supports_effective_ids):
        return f"no permission to write in {folder}"
    return ""
