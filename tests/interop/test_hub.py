"""Models by name, from a server on this machine, in processes of their own: the package reads its settings once."""

import hashlib
import json
import os
import pathlib
import subprocess
import sys

import chex
import numpy as np
import pytest

from jaxformer.errors import ConfigError
from jaxformer.interop import hub, tensors
from tests.interop.hub import PLAIN, Hub

ASK = """
import json, os, sys
from jaxformer.errors import JaxformerError
from jaxformer.interop import hub
for path in sys.argv[1:]:
    try:
        found = hub.snapshot(path)
        print(json.dumps(found and [found.name, str(found.folder), found.revision, found.hashes]))
    except JaxformerError as error:
        print(json.dumps(str(error)))
"""


def asked(home, address, *names, **more):
    """Returns what one process finds under names."""
    settings = {
        "HF_ENDPOINT": address,
        "HF_HOME": str(home),
        "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
    }
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    done = subprocess.run(
        [sys.executable, "-c", ASK, *names], env=kept | settings | more, capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stderr) == (0, "")
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_names_are_downloaded_and_kept(tmp_path):
    """Only files that a conversion reads; a second process, without a connection, finds them again."""
    server = Hub()
    first = server.commit("a/model", PLAIN | {"pytorch_model.bin": b"pickle", "onnx/model.safetensors": b"other"})
    tagged = server.commit("a/model", PLAIN | {"tokenizer.json": b"{}"}, revisions=("v1.0", "refs/pr/3"))
    with server.serving() as address:
        names = ("a/model", "a/model@v1.0", "a/model@refs/pr/3", f"a/model@{tagged}", str(tmp_path / "no"), "model")
        main, *others, path, word = asked(tmp_path / "hf", address, *names)
        hashes = {name: hashlib.sha256(PLAIN[name]).hexdigest() for name in ("config.json", "model.safetensors")}
        assert main == ["a/model", main[1], first, hashes]
        for other in others:
            assert other[2:] == [tagged, hashes | {"tokenizer.json": hashlib.sha256(b"{}").hexdigest()}]
        assert path is word is None
        assert not any("bin" in request or "README" in request or "onnx" in request for request in server.requests)
    (pathlib.Path(main[1]) / "README.md").write_bytes(PLAIN["README.md"])  # by another program
    assert asked(tmp_path / "hf", address, "a/model", "a/model@v1.0", HF_HUB_OFFLINE="1") == [main, others[0]]
    line = "a/other cannot be reached, and is not in the cache"
    assert asked(tmp_path / "hf", address, "a/model", "a/other", "a/model@v2") == [
        main,
        line,
        "a/model cannot be reached, and is not in the cache",
    ]


def test_shards_that_are_written_here_are_downloaded(tmp_path):
    weights = {name: np.full(3, i, np.float32) for i, name in enumerate("abc")}
    (tmp_path / "saved").mkdir()
    tensors.write(tmp_path / "saved", weights.items(), shard_bytes=12)
    files = {path.name: path.read_bytes() for path in (tmp_path / "saved").iterdir()}
    assert sorted(files) == [*(f"model-0000{i}-of-00003.safetensors" for i in (1, 2, 3)), tensors.INDEX]
    server = Hub()
    server.commit("a/model", files | {"config.json": b"{}"})
    with server.serving() as address:
        ((_, folder, _, hashes),) = asked(tmp_path / "hf", address, "a/model")
    assert {*files} < {*hashes}
    with tensors.Tensors(pathlib.Path(folder)) as found:
        chex.assert_trees_all_equal({name: found.read(name) for name in found.shapes}, weights)


def test_each_refusal_is_one_line(tmp_path):
    server = Hub()
    weights = {"config.json": b"{}", "pytorch_model.bin": b"pickle"}
    server.commit("a/pickled", weights)
    server.commit("a/moved", PLAIN)
    server.commit("a/gated", PLAIN)
    server.commit("b/model", PLAIN)
    server.renamed, server.gated = {"a/model": "b/model"}, {"a/gated"}
    changed = PLAIN | {"config.json": b"{}"}
    server.after_info = lambda name: name == "a/moved" and server.commit("a/moved", changed)
    with server.serving() as address:
        names = ("a/pickled", "a/model", "a/gated", "a/none", "b/model@gone", "a/moved", "a--b/c")
        lines = asked(tmp_path / "hf", address, *names)
    assert lines == [
        "a/pickled has no weights in safetensors; pytorch_model.bin may be a pickle, which can run code",
        "a/model is now called b/model; give that name if it is the model you mean",
        f"a/gated is gated: accept its terms at {address}/a/gated, then `hf auth login`",
        "a/none is no folder here and no public model; for a private one, `hf auth login`",
        "b/model has no revision gone any more, or never had",
        "a/moved has changed: its revision main moved while it was read; try again",
        "a--b/c is not the name of a model",
    ]
    assert not [x for x in server.requests if "resolve" in x and ("pickled" in x or "a/model" in x)]


def test_a_folder_has_priority(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a" / "model").mkdir(parents=True)
    assert hub.snapshot("a/model") is None
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"^a/other is not a folder here, and a model by name needs the package hugg"):
        hub.snapshot("a/other")
