"""Checks the built docs book. usage: book_checks.py FOLDER_OF_THE_BOOK

Every link and anchor leads to something in the book or the repository, nothing is fetched from another host, every page is found by
the search, and the Markdown of docs/ has no list or table that would be shown as a paragraph."""
import html.parser
import json
import pathlib
import re
import sys
import urllib.parse

ROOT = pathlib.Path(__file__).resolve().parents[1]
WEB = "https://github.com/hanzoai/engine/"
# What a browser fetches by itself, by element and attribute.
FETCHED = {("script", "src"), ("img", "src"), ("link", "href"), ("iframe", "src"), ("source", "src"), ("video", "src"), ("audio", "src")}
LINKS_ONLY = ("canonical", "prev", "next", "edit")
BYTES_MAX = 20 << 20


class Page(html.parser.HTMLParser):
    """Ids of a page, links, and what it fetches."""

    def __init__(self, path):
        super().__init__()
        self.ids, self.links, self.fetched = set(), [], []
        self.feed(path.read_text())

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.ids.update(filter(None, (attributes.get("id"), attributes.get("name"))))
        for name, value in attributes.items():
            if (tag, name) in FETCHED and attributes.get("rel") not in LINKS_ONLY:
                self.fetched.append(value or "")
            elif (tag, name) == ("a", "href"):
                self.links.append(value or "")


def dead_links(book, pages):
    """(page, link) that leads nowhere; and how many were followed."""
    dead, count = [], 0
    for path, page in pages.items():
        for link in page.links + page.fetched:
            count += 1
            address = urllib.parse.urlsplit(link)
            if link.startswith(WEB) and re.match(r"(blob|tree)/main/", link.removeprefix(WEB)):
                there = ROOT / urllib.parse.unquote(address.path).split("/main/", 1)[1]
                if not there.exists():
                    dead.append((path, link))
                continue
            if address.scheme or address.netloc or link.startswith("//"):
                continue
            there = path.parent / urllib.parse.unquote(address.path) if address.path else path
            there = (there / "index.html" if there.is_dir() else there).resolve()
            anchor = urllib.parse.unquote(address.fragment)
            if not there.exists() or not there.is_relative_to(book):
                dead.append((path, link))
            elif anchor and there in pages and anchor not in pages[there].ids:
                dead.append((path, link))
    return dead, count


def fetched_elsewhere(book, pages):
    """(file, address) of another host that a reader's browser would ask."""
    for path, page in pages.items():
        yield from ((path, address) for address in page.fetched if re.match(r"(https?:)?//", address))
    for path in book.rglob("*.css"):
        yield from ((path, address) for address in re.findall(r"(?:url\(|@import )[\"']?((?:https?:)?//[^\"')]+)", path.read_text()))


def shown_otherwise(path):
    """Lines of Markdown that begin a list or a table behind a paragraph, which Python-Markdown takes for more of it."""
    fence, before = False, ""
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if line.lstrip().startswith("```"):
            fence = not fence
        elif not fence:
            starts = re.match(r"([-*] |\d+\. |\|)", line)
            inside = re.match(r"\s*([-*] |\d+\. |\|)|  +\S|<!--|$", before)
            if starts and not inside:
                yield number, line
        before = line if not line.startswith("```") else ""


def main():
    book = pathlib.Path(sys.argv[1]).resolve()
    pages = {path: Page(path) for path in sorted(book.rglob("*.html"))}
    faults = []
    dead, links = dead_links(book, pages)
    faults += [f"{path.relative_to(book)}: dead link {link}" for path, link in dead if path.name != "404.html"]
    faults += [f"{path.relative_to(book)}: fetches {address}" for path, address in fetched_elsewhere(book, pages)]
    sources = sorted((ROOT / "docs").rglob("*.md"))
    faults += [f"{path.relative_to(ROOT)}:{number}: a list or table needs an empty line before it: {line[:60]}"
               for path in sources for number, line in shown_otherwise(path)]
    index = json.loads((book / "search/search_index.json").read_text())["docs"]
    found = {entry["location"].partition("#")[0] for entry in index}
    for path in pages:
        location = str(path.relative_to(book)).removesuffix("index.html")
        if path.name != "404.html" and location not in found:
            faults.append(f"{location}: the search does not know it")
    size = sum(path.stat().st_size for path in book.rglob("*") if path.is_file())
    if size > BYTES_MAX:
        faults.append(f"the book has {size} bytes, more than {BYTES_MAX}")
    print(f"{len(pages)} pages of {len(sources)} documents, {links} links followed, {len(index)} entries of the search, {size / 1e6:.1f} MB in {book}")
    for fault in faults:
        print(f"FAIL {fault}")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
