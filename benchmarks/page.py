"""Measures a page of attention: its size, and the time until a browser has drawn it (it needs playwright).

python -m benchmarks.page --out benchmarks/results/page.json
"""

from __future__ import annotations

import argparse
import pathlib
import shutil
import tempfile
import time

import numpy as np

from benchmarks import command
from jaxformer.errors import ConfigError
from jaxformer.inspection import pages
from jaxformer.inspection.attention_maps import AttentionWeights

LAYERS, HEADS, TOKENS = 12, 16, 60
READY = "performance.getEntriesByType('navigation')[0].domComplete"
"""The milliseconds from the beginning of loading a page to its end, which is after its script has drawn it."""


def main(arguments: list[str] | None = None) -> int:
    return command.exit_code(run, command.parser("page", __doc__).parse_args(arguments))


def run(args: argparse.Namespace) -> None:
    """Measures and prints everything."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError as error:
        raise ConfigError("this benchmark needs a browser: pip install playwright") from error
    weights = np.random.default_rng(0).dirichlet(np.ones(TOKENS), (LAYERS, HEADS, TOKENS)).astype(np.float32)
    attention = AttentionWeights(("▁a",) * TOKENS, ("▁b",) * TOKENS, weights)
    view = pages.View("a", dict.fromkeys(("encoder.self", "decoder.self", "decoder.cross"), attention))
    began = time.perf_counter()
    source = pages.page([view])
    written, ready = time.perf_counter() - began, []
    path = shutil.which("chromium-headless-shell") or shutil.which("chromium")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        page = pages.save(source, pathlib.Path(folder) / "page.html")
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        for _ in range(5):
            tab = browser.new_page()
            tab.goto(page.as_uri())
            ready.append(tab.evaluate(READY) / 1000)
            tab.close()
        browser.close()
    print(f"{len(source):,} bytes, written in {written:.2f} s, drawn in {min(ready):.2f} to {max(ready):.2f} s")
    command.write(args.out, {"bytes": len(source), "written_s": written, "ready_s": ready})


if __name__ == "__main__":
    command.script(main)
