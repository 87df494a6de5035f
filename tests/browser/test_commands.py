"""Pages of real models in a real browser: a converted one, one with an attention of one's own, and the live form."""

import contextlib
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest

import jaxformer
from jaxformer.cli.main import main
from tests.tasks.pretrained.translators import TEXT, folder

pytestmark = pytest.mark.browser

SHOWN = 6e-4
OWN = """from flax import nnx
from jaxformer import functional as F
import jax.numpy as jnp

class Sharpened(nnx.Module):
    def __init__(self):
        self.factor = nnx.Param(jnp.full((), 2.0), axes=())

    def __call__(self, query, key, value, *, mask=None):
        return F.attention(query * self.factor[...], key, value, mask=mask)

attend = Sharpened()
"""
TRAIN = (
    "train language_model --data.text a.txt --attention mine.py:attend --out run --data.length 8 --data.batch_size 8 "
    "--data.cache cache --model.d_model 12 --model.num-heads 1 --model.d_ff 12 --model.num-layers 1 --train.steps 2 "
    "--optimizer.warmup-steps 1 --train.tensorboard False"
)
WAIT = 120_000
"""Milliseconds until a model has compiled its programs and answered."""


@pytest.fixture(scope="module")
def converted(tmp_path_factory):
    """The run of a converted translator, whose parameters are random."""
    path = tmp_path_factory.mktemp("converted")
    folder(path / "published", "m2m100")
    assert main(["convert", str(path / "published"), "--out", str(path / "run")]) == 0
    return path / "run"


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    """The folder of a language model that was trained for two steps with an attention of one's own."""
    path = tmp_path_factory.mktemp("own")
    (path / "a.txt").write_text("to be or not to be, that is the question\n" * 9)
    (path / "mine.py").write_text(OWN)
    with contextlib.chdir(path):
        assert main(TRAIN.split()) == 0
    return path


def check_page(opened, page, view):
    """Checks that the table of each head of each attention has its weights."""
    tab = opened(address=page.as_uri())
    for number, kind in enumerate(sorted(view.attentions, key=lambda name: name != view.default), 1):
        if len(view.attentions) > 1:
            tab.click(f".kinds button:nth-child({number})")
        weights = view.attentions[kind].weights
        for layer, head in np.ndindex(weights.shape[:2]):
            tab.click(f"[data-map='{layer} {head}']")
            shown = tab.eval_on_selector_all("td[data-column]", "all => all.map(x => Number(x.textContent))")
            np.testing.assert_allclose(np.reshape(shown, weights.shape[2:]), weights[layer, head], atol=SHOWN)


def test_a_converted_model(opened, converted, tmp_path):
    page = tmp_path / "page.html"
    assert main(["inspect", str(converted), TEXT, "--to", "fr", "--html", str(page)]) == 0
    check_page(opened, page, jaxformer.load(converted).to("fr").view(TEXT))


def test_an_attention_of_ones_own(opened, own, tmp_path, monkeypatch):
    monkeypatch.chdir(own)
    page = tmp_path / "page.html"
    assert main(["inspect", "run", "to be or", "--html", str(page)]) == 0
    check_page(opened, page, jaxformer.load("run").view("to be or"))


def test_the_live_form_of_a_real_model(opened, converted, tmp_path):
    """Its answer is that of the model; a run that is removed meanwhile is one line and exit code 2."""
    shutil.copytree(converted, run := tmp_path / "run")
    words = [sys.executable, "-m", "jaxformer", "inspect", str(run), "--to", "fr", "--serve", "--port", "0"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as server:
        try:
            address = re.match(r"http://127\.0\.0\.1:\d+/", server.stdout.readline())[0]
            tab = opened(address=address)
            translator = jaxformer.load(run).to("fr")
            for text in (TEXT, "A cat."):
                tab.fill("textarea", text)
                tab.click("form button", timeout=WAIT)
                tab.wait_for_selector(f"main dd:text-is('{text}')", timeout=WAIT)
                assert tab.locator("main dd").all_inner_texts() == [text, *translator.translate([text])]
                assert tab.locator("#search [data-node]").count() > 0
            shutil.rmtree(run)
            tab.click("form button")
            gone = f"{run}/config.json is gone since {run} was loaded; start the command again"
            assert tab.inner_text("[role=alert]") == gone
            assert "409 (Conflict)" in opened.problems.pop()  # the console says so of any refusal
            assert server.wait(timeout=60) == 2
            assert server.stderr.read().splitlines()[-1].endswith(gone)
        finally:
            server.kill()
