"""Hooks of mkdocs.yml. Links from docs/ to other files of the repository lead to its web page; a file that is missing fails a strict
build. The search shows what a user asks for before the reasons behind it."""
import logging
import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parents[1]
WEB = "https://github.com/hanzoai/engine"
LINK = re.compile(r"(?<=\]\()(?!https?:|#|mailto:)([^)\s#]+)(#[^)\s]*)?(?=\))")
# How much a page of a folder weighs in the search.
WEIGHTS = {"start": 4, "guides": 3, "operate": 3, "concepts": 2, "performance": 0.5, "develop": 0.1}
LOG = logging.getLogger("mkdocs.hooks.book")


def on_page_markdown(markdown, page, config, **_):
    """Weighs the page, and gives its text with each link out of docs/ as a web address. MkDocs checks links inside."""
    page.meta.setdefault("search", {"boost": WEIGHTS.get(page.file.src_uri.partition("/")[0], 1)})
    docs, here = pathlib.Path(config.docs_dir).resolve(), pathlib.Path(page.file.abs_src_path).parent

    def lead(link):
        there = (here / link[1]).resolve()
        if there.is_relative_to(docs):
            return link[0]
        if not there.exists() or not there.is_relative_to(ROOT):
            LOG.warning("%s: no %s", page.file.src_uri, link[1])
            return link[0]
        kind = "tree" if there.is_dir() else "blob"
        return f"{WEB}/{kind}/main/{there.relative_to(ROOT)}{link[2] or ''}"

    return LINK.sub(lead, markdown)
