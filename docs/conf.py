"""Build the documentation as a site: `make docs`.

The source folder is the repository's root, so that a link such as `../bundles/pfedsis/docs/README.md` works on the site
and on a code host. The pages are plain Markdown without directives; `docs/_ext/contents.py` makes the navigation.
"""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "docs" / "_ext")]

from shared_components import __version__  # noqa: E402  # the root is on the path only now

project, author = "SurgFL", "the SurgFL contributors"
version = release = __version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "contents"]

root_doc = "docs/index"
include_patterns = [
    "README.md", "CONTRIBUTING.md", "SECURITY.md", "CODE_OF_CONDUCT.md", "CHANGELOG.md", "docs/**.md",
    "bundles/README.md", "bundles/*/docs/README.md", "nvflare_jobs/*/README.md",
]  # fmt: skip
exclude_patterns = [".*", "shared_components", "tests", "evidence", "demo*", "ws*", "runs", "build", "weights"]

# Every heading is an anchor, named as on GitHub. A link to a missing file, page or heading is a warning.
myst_heading_anchors = 6
nitpicky = True
nitpick_ignore_regex = [("py:.*", ".*")]  # types in signatures: torch's and our own are not pages of the site

templates_path = ["_templates"]
# Docstrings write code in single backticks.
default_role = "code"
autodoc_typehints = "signature"
napoleon_use_ivar = True
autodoc_preserve_defaults = True

html_theme = "furo"
html_title = "SurgFL"
html_additional_pages = {"index": "start.html"}
html_static_path, html_css_files = ["_static"], ["surgfl.css"]
html_copy_source = False
html_permalinks_icon = "#"
pygments_style, pygments_dark_style = "default", "monokai"
