"""Checks the links of a site that has been built: each leads to a file of the site, and to a place in it; no network.

python docs/check_links.py build/docs
"""

import html.parser
import pathlib
import sys
import urllib.parse

EXTERNAL = ("http:", "https:", "mailto:", "data:", "javascript:")


class Page(html.parser.HTMLParser):
    """The places of a page that links can lead to, and its own links."""

    def __init__(self, text: str):
        super().__init__()
        self.places: set[str] = set()
        self.links: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "id" or (name == "name" and tag == "a"):
                self.places.add(value or "")
            elif name in ("href", "src") and value and not value.startswith(EXTERNAL):
                self.links.append(value)


def broken_links(folder: pathlib.Path) -> list[str]:
    """Returns the links that lead nowhere, each with its page."""
    pages = {path: Page(path.read_text(encoding="utf-8")) for path in sorted(folder.rglob("*.html"))}
    found = []
    for path, page in pages.items():
        for link in dict.fromkeys(page.links):
            address = urllib.parse.urlsplit(link)
            target = path
            if address.path:
                target = pathlib.Path(path.parent, urllib.parse.unquote(address.path)).resolve()
            place = urllib.parse.unquote(address.fragment)
            if not target.is_file() or (place and target in pages and place not in pages[target].places):
                found.append(f"{path.relative_to(folder)}: {link}")
    return found


def main() -> int:
    folder = pathlib.Path(sys.argv[1]).resolve()
    broken = broken_links(folder)
    for link in broken:
        print(f"a link leads nowhere: {link}", file=sys.stderr)
    count = sum(1 for _ in folder.rglob("*.html"))
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 1e6
    print(f"{count} pages, {size:.0f} MB, {len(broken)} broken links: {folder / 'index.html'}")
    return 1 if broken or not count else 0


if __name__ == "__main__":
    sys.exit(main())
