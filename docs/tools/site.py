"""A hook of mkdocs: the site has the layout of the repository, so that a link between documents is the same in both.

Knows: which files are pages, and that whatever a page links to is part of the site. A link to nothing is mkdocs' own
finding (`mkdocs build --strict`).
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files

_PAGES = (
    "*.md",
    "docs/*.md",
    "docs/frameworks/*.md",
    "docs/reference/*.md",
    "examples/*.md",
    "examples/plugins/*.md",
    "benchmarks/results/*.md",
)
_LINK = re.compile(r"\]\(([^()#\s]+)(?:#[^()\s]*)?\)")


def on_files(files: "Files", config: "MkDocsConfig") -> "Files":
    """Called by mkdocs, with the theme's own files and what it found in `docs/`, which has other addresses here."""
    from mkdocs.structure.files import File, Files  # tests look for links without it

    root = Path(config.config_file_path).parent
    kept = [file for file in files if file.src_dir != config.docs_dir]
    shown = sorted({path.relative_to(root).as_posix() for path in _shown(root)})
    return Files([*kept, *(File(path, str(root), config.site_dir, config.use_directory_urls) for path in shown)])


def pages(root: Path) -> list[Path]:
    return sorted(path for pattern in _PAGES for path in root.glob(pattern))


def linked(page: Path) -> Iterator[str]:
    """What a page links to within the repository, relative to its own folder."""
    for target in _LINK.findall(page.read_text()):
        if "://" not in target:
            yield unquote(target)


def _shown(root: Path) -> Iterator[Path]:
    for page in pages(root):
        yield page
        for target in linked(page):
            path = (page.parent / target).resolve()
            if path.is_file() and path.is_relative_to(root):
                yield path
