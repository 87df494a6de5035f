"""Known corpora: addresses, checksums, and downloading."""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import http.client
import io
import lzma
import os
import pathlib
import urllib.error
import urllib.parse
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Mapping

from jaxformer.errors import JaxformerError, did_you_mean
from jaxformer.files import write_bytes

LARGEST = 1 << 30
"""The number of bytes after which downloading or unpacking a file stops; every file of the catalog is far smaller."""

BUSY = 408, 429
"""HTTP status codes below 500 that are worth a retry: a timeout, and too many requests."""


_BROKEN = OSError, EOFError, KeyError, RuntimeError, ValueError, zlib.error, lzma.LZMAError, zipfile.BadZipFile


class FetchError(JaxformerError):
    """A corpus could not be downloaded, or it is not the expected one."""

    exit_code = 2


class DownloadError(FetchError):
    """The server or the connection to it failed: trying again can help."""

    exit_code = 1


@dataclasses.dataclass(frozen=True)
class File:
    """One file of a corpus.

    Attributes:
      path: its path below the data directory.
      url: its address.
      sha256: the checksum of the file after unpacking.
      member: the name inside a zip archive, if `url` is one; a file whose `url` ends in .gz is decompressed.
    """

    path: str
    url: str
    sha256: str
    member: str = ""


@dataclasses.dataclass(frozen=True)
class PublicCorpus:
    """A corpus: its description and its files."""

    about: str
    files: tuple[File, ...]


_MULTI30K = "https://raw.githubusercontent.com/multi30k/dataset/a3d2e0d26b56f3846f66a952536ffed4e401d05a/data/task1/raw"

CATALOG: dict[str, PublicCorpus] = {
    "multi30k": PublicCorpus(
        "29,000 image descriptions in English, German and French (Elliott et al. 2016, 2017); non-commercial research",
        tuple(
            File(f"multi30k/{name.removesuffix('_flickr')}.{language}", f"{_MULTI30K}/{name}.{language}.gz", sha256)
            for name, language, sha256 in (
                ("train", "en", "460a15fbd157e34a7a9957ee388c1ca247fe47af3ef25fb50442af6c274e0fc6"),
                ("train", "de", "2c2b73fd2b548fbcde3a875e0a78d6ee94d498bfdee6bd3eae3945779e9ddf72"),
                ("train", "fr", "5925a3c18f1587b6b54b87743106e6e8ab93618edb6f65d19eac0621f853a10d"),
                ("val", "en", "1f2a23d992769b5b3d209b0a10dd0b77c08cceb1f20dfb97ed0aafa49d107227"),
                ("val", "de", "660e09eb7e1da2f856ea13ee5ad3cf6d36b3d5b0b733c857e94c5747a3dfc660"),
                ("val", "fr", "5304e444d842e962b2dda4d816b70b22a1765b15401642b7ca37a67477e708dc"),
                ("test_2016_flickr", "en", "399a4382932c1aadd3ceb9bef1008d388a64c76d4ae4e9d4728c6f4301cac182"),
                ("test_2016_flickr", "de", "4be6b5b3236b79c25475c6bb829800a7ce559e9ba7a1f6c2394fe4d40be46d16"),
                ("test_2016_flickr", "fr", "cb3160d69b002bb638e66cc7612fcd56cb0af82eadc9c142dedc438afb885ef6"),
            )
        ),
    ),
    "tatoeba": PublicCorpus(
        "short everyday sentences, English-French and English-German; CC BY 2.0, manythings.org and tatoeba.org",
        (
            File(
                "tatoeba/eng-fra.tsv",
                "https://raw.githubusercontent.com/modelexlab/data/adddaf33ac35572bcfeb421efec29435e7ea9332/fra-eng.zip",
                "0bb85dbaa1c896844649094d7eaf2e34bee34e84fe362b26ce7e8f2e12aae104",
                member="fra.txt",
            ),
            File(
                "tatoeba/eng-deu.tsv",
                "https://raw.githubusercontent.com/rioyshky/translation/de48b7027f7318d77010a6e08ed928c10748c23d/deu-eng.zip",
                "a79c90b3cd3102decffa49cc00fb6f20023974f2ae5c4782515bebe133fcc07b",
                member="deu.txt",
            ),
        ),
    ),
}
"""Corpora by name, each file pinned by its checksum."""


def fetch(
    name: str,
    directory: str | os.PathLike[str],
    *,
    catalog: Mapping[str, PublicCorpus] = CATALOG,
    say: Callable[[str], None] = lambda text: None,
    timeout: float = 60.0,
) -> list[pathlib.Path]:
    """Downloads a corpus into `directory`, except files that exist with the right checksum; returns their paths.

    A file appears under its name only when it is whole and its checksum is correct.

    Raises:
      FetchError: an unknown name, a request that the server rejects, or a wrong checksum.
      DownloadError: no connection, a lost connection, or a server error.
    """
    if name not in catalog:
        raise FetchError(f"no corpus {name!r}{did_you_mean(name, catalog)}")
    root = pathlib.Path(os.path.abspath(directory))
    paths = []
    for file in catalog[name].files:
        path = pathlib.Path(os.path.abspath(root / file.path))  # links are followed on purpose
        if not path.is_relative_to(root):
            raise FetchError(f"{file.path} is outside of {root}")
        if not (path.exists() and hashlib.sha256(path.read_bytes()).hexdigest() == file.sha256):
            say(f"fetching {file.url}")
            data = _unpack(file, _download(file.url, timeout))
            if (actual := hashlib.sha256(data).hexdigest()) != file.sha256:
                raise FetchError(f"{file.url} has sha256 {actual}, expected {file.sha256}")
            write_bytes(path, data)
        paths.append(path)
    return paths


def _download(url: str, timeout: float) -> bytes:
    parts = urllib.parse.urlsplit(url)
    if parts.scheme != "https" and (parts.scheme, parts.hostname) != ("http", "127.0.0.1"):
        raise FetchError(f"{url} is not an https address")
    try:
        with urllib.request.urlopen(url, timeout=timeout) as response:  # noqa: S310 - the scheme was checked
            data = _limited(url, response.read)
            expected = response.headers.get("Content-Length")
    except urllib.error.HTTPError as error:
        error.close()
        kind = DownloadError if error.code >= 500 or error.code in BUSY else FetchError
        raise kind(f"{url}: the server answered {error.code} {error.reason}") from error
    except (urllib.error.URLError, http.client.HTTPException, OSError) as error:
        raise DownloadError(f"{url}: {getattr(error, 'reason', error)}") from error
    if expected is not None and str(len(data)) != expected:
        raise DownloadError(f"{url}: the connection broke after {len(data):,} of {expected} bytes")
    return data


def _unpack(file: File, data: bytes) -> bytes:
    try:
        if file.member:
            with zipfile.ZipFile(io.BytesIO(data)) as archive, archive.open(file.member) as stream:
                return _limited(file.url, stream.read)
        if file.url.endswith(".gz"):
            with gzip.open(io.BytesIO(data)) as stream:
                return _limited(file.url, stream.read)
        return data
    except _BROKEN as error:
        raise FetchError(f"{file.url} cannot be unpacked: {error}") from error


def _limited(url: str, read: Callable[[int], bytes]) -> bytes:
    """Returns the bytes of a stream; a small archive can unpack to any number of them."""
    data = read(LARGEST + 1)
    if len(data) > LARGEST:
        raise FetchError(f"{url} is larger than {LARGEST:,} bytes")
    return data
