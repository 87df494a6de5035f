"""``jaxformer caption``: output, pictures and refusals, with a captioner in place of a model."""

import json
import pathlib
import re

import numpy as np
import pytest

from jaxformer.cli import caption
from jaxformer.errors import ConfigError
from jaxformer.inspection.attention_maps import AttentionMap
from jaxformer.models import GridConfig, RecurrentCaptioner, RecurrentCaptionerConfig
from jaxformer.modules.pure import Pure
from jaxformer.tasks.captioning import CaptioningConfig, DecodeConfig, ImageCaptioner
from jaxformer.tasks.search import Candidate
from jaxformer.tokenizers.characters import CharacterTokenizer


class Seen(ImageCaptioner):
    def __init__(self):
        """A captioner without a model, of images of 4 x 4."""
        config = RecurrentCaptionerConfig(image=GridConfig(image_size=(4, 4), widths=(4, 4)))
        object.__setattr__(self, "net", Pure(RecurrentCaptioner, config))
        object.__setattr__(self, "decode", DecodeConfig())
        object.__setattr__(self, "programs", set())
        object.__setattr__(self, "tokenizer", CharacterTokenizer("act"))

    def read(self, path):
        return np.zeros((4, 4, 3), np.uint8)

    def candidates(self, images, *, n_best=1, first=1, progress=None):
        return [[Candidate(f"cat {i}", -0.5 - i, ()) for i in range(n_best)] for _ in images]

    def attention_maps(self, images, captions):
        return [AttentionMap(tuple("abcd"), tuple(text.split()), np.ones((2, 4)) / 4) for text in captions]


@pytest.fixture(autouse=True)
def _captioner(monkeypatch):
    monkeypatch.setattr(caption, "configured", lambda options, settings: CaptioningConfig())
    monkeypatch.setattr(caption, "load_ensemble", lambda options, config: Seen())


def test_lines(capsys, tmp_path):
    assert caption.main(["run", "a.png", "b.png", "--picture", str(tmp_path / "sheet.png")]) == 0
    assert capsys.readouterr().out == "cat 0\ncat 0\n"
    assert (tmp_path / "sheet.png").exists()
    assert caption.main(["run", "a.png", "--n-best", "2"]) == 0
    assert capsys.readouterr().out == "1\t-0.5000\tcat 0\n1\t-1.5000\tcat 1\n"
    assert caption.main(["run", "a.png", "--scores"]) == 0
    assert capsys.readouterr().out == "-0.5000\tcat 0\n"
    assert caption.main(["run", "a.png", "--json"]) == 0
    text = json.loads(capsys.readouterr().out)
    assert (text["image"], text["captions"][0]["text"]) == ("a.png", "cat 0")
    assert text["captions"][0]["tokens"] == []
    names = [str(tmp_path / name) for name in ("c.png", "d.png")]
    for name in names:
        pathlib.Path(name).touch()
    (tmp_path / "names").write_text("\n".join(names) + "\n")
    assert caption.main(["run", "--file", str(tmp_path / "names"), "--out", str(tmp_path / "out")]) == 0
    assert (tmp_path / "out").read_text() == "cat 0\ncat 0\n"
    assert capsys.readouterr().err.endswith("used 0 compiled search programs\n")
    with pytest.raises(SystemExit, match="0"):
        caption.main(["--help"])
    assert f"first {caption.MOST} images" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("arguments", [[], ["a.png", "--file", "x"]])
def test_images_or_a_file(arguments, capsys):
    with pytest.raises(ConfigError, match=re.escape("give the names of images, or --file")):
        caption.main(["run", *arguments])
