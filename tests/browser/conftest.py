"""A real browser for the tests of pages."""

import os
import shutil

import pytest

from jaxformer.inspection.pages import page, save


@pytest.fixture(scope="session")
def browser():
    """Chromium of Debian, driven by playwright; JAXFORMER_BROWSER=needed makes its absence an error."""
    missing = pytest.fail if os.environ.get("JAXFORMER_BROWSER") == "needed" else pytest.skip
    path = shutil.which("chromium-headless-shell") or shutil.which("chromium")
    if path is None:
        missing("no chromium: apt-get install chromium-headless-shell")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        missing("no playwright: pip install playwright")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def opened(browser, tmp_path):
    """A function that opens the page of views, or a given one; the console has no error, and nothing is requested."""
    problems, contexts = [], []

    def open_page(*views, width=1280, scheme="light", address=None, source="", **options):
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        contexts.append(context)
        tab = context.new_page()
        tab.on("console", lambda message: message.type != "error" or problems.append(message.text))
        tab.on("pageerror", lambda error: problems.append(str(error)))
        tab.on("dialog", lambda dialog: (problems.append(dialog.message), dialog.dismiss()))
        address = address or save(source or page(views, **options), tmp_path / "page.html").as_uri()
        tab.on("request", lambda request: request.url.startswith(address) or problems.append(request.url))
        tab.goto(address)
        return tab

    open_page.problems = problems
    yield open_page
    for context in contexts:
        context.close()
    assert problems == []
