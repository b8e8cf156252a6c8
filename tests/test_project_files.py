"""The files that say who we are agree with each other and with the methods' own words."""

import configparser
import re
import tomllib
from pathlib import Path

import yaml

from shared_components import __version__
from shared_components.method import load_method

ROOT = Path(__file__).resolve().parents[1]


def test_changelog_and_citation_name_this_version():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    (newest,) = re.findall(r"^## .*?(\d+\.\d+\.\d+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)[:1]
    assert citation["version"] == newest == __version__


def test_a_citation_is_whole_and_cites_what_a_method_says_of_itself():
    """The keys that the Citation File Format 1.2.0 requires; the paper's year and DOI are those of the method."""
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert {"cff-version", "message", "title", "authors"} <= set(citation)
    (paper,) = citation["references"]
    own = load_method("pfedsis").paper
    assert paper["doi"] in own and str(paper["year"]) in own and paper["authors"][0]["family-names"] in own


def test_types_and_what_they_need_are_packed():
    """A wheel without `py.typed` hides every type of ours from its users."""
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    assert "py.typed" in re.split(r"[,\s]+", setup["options.package_data"]["*"])
    assert (ROOT / "shared_components" / "py.typed").read_bytes() == b""
    assert "setuptools" in tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"][0]
