"""Make the navigation from the links of index pages, which stay plain Markdown.

A link of `docs/index.md` to a page makes the page an entry below the link's heading. The cards of bundles and jobs
are entries below the pages that list them.
"""

import os.path
import re
from fnmatch import fnmatch
from typing import Any

from sphinx.application import Sphinx

INDEXES = {"docs/index": "*", "bundles/README": "bundles/*/docs/README", "docs/reference/jobs": "nvflare_jobs/*/README"}
"""Index page: pattern of the pages that become its entries."""
LINK = re.compile(r"\]\(([^)\s:#]+)\.md\)")
API = "docs/reference/python-api"
MODULE = re.compile(r"^\| \[`([\w.]+)`\]", re.MULTILINE)
HEADING = re.compile(r"^## (.+)$", re.MULTILINE)


DOCSTRINGS = """
### `{0}`

```{{eval-rst}}
.. automodule:: {0}
   :members:
   :member-order: bysource
```
"""


def add_contents(app: Sphinx, page: str, source: list[str]) -> None:
    """Append hidden tables of contents to index pages, and docstrings to the page of the Python API."""
    if page == API:
        source[0] += "".join(DOCSTRINGS.format(name) for name in MODULE.findall(source[0]))
    if page not in INDEXES:
        return
    whole = page == "docs/index"
    parts = HEADING.split(source[0])[1:] if whole else ["", source[0]]
    for caption, text in zip(parts[::2], parts[1::2], strict=True):
        linked = (os.path.normpath(os.path.join(os.path.dirname(page), link)) for link in LINK.findall(text))
        pages = [one for one in dict.fromkeys(linked) if fnmatch(one, INDEXES[page])]
        options = f":caption: {caption}\n" if whole else ""
        entries = "".join(f"/{one}\n" for one in pages)
        source[0] += f"\n```{{toctree}}\n:hidden:\n{options}\n{entries}```\n" if pages else ""


def setup(app: Sphinx) -> dict[str, Any]:
    """Register with Sphinx."""
    app.connect("source-read", add_contents)
    return {"parallel_read_safe": True}
