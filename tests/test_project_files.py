"""The files that say who we are agree with each other and with the methods' own words."""

import configparser
import re
import tomllib
from pathlib import Path

import yaml
from setuptools import Distribution

from shared_components import __version__
from shared_components.core.method import load_method

ROOT = Path(__file__).resolve().parents[1]


def test_a_citation_is_whole_of_the_changelogs_version_and_cites_what_a_method_says_of_itself():
    """The keys that the Citation File Format 1.2.0 requires; the paper's year and DOI are those of the method."""
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    newest = re.findall(r"^## .*?(\d+\.\d+\.\d+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)[0]
    assert citation["version"] == newest == __version__
    assert {"cff-version", "message", "title", "authors"} <= set(citation)
    (paper,) = citation["references"]
    own = load_method("pfedsis").about.paper
    assert paper["doi"] in own and str(paper["year"]) in own and paper["authors"][0]["family-names"] in own


def test_a_wheel_has_types_what_they_need_and_every_file_of_package_bundles_and_jobs(monkeypatch):
    """A wheel without `py.typed` hides every type of ours from its users."""
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    assert "py.typed" in re.split(r"[,\s]+", setup["options.package_data"]["*"])
    assert (ROOT / "shared_components" / "py.typed").read_bytes() == b""
    assert "setuptools" in tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"][0]
    monkeypatch.chdir(ROOT)
    distribution = Distribution({"script_name": "setup.py"})
    distribution.parse_config_files(["setup.cfg"])
    build = distribution.get_command_obj("build_py")
    build.ensure_finalized()
    data = [Path(source, name) for _, source, _, names in build.data_files for name in names]
    packed = {*map(str, data), *(str(Path(path)) for _, _, path in build.find_all_modules())}
    folders, left_out = ("shared_components", "surgfl", "bundles", "nvflare_jobs"), {"__pycache__", "runs", "results"}
    expected = [path for folder in folders for path in Path(folder).rglob("*") if path.is_file()]
    assert {str(path) for path in expected if not left_out & set(path.parts)} - packed == set()
    assert {"nvflare_jobs/pfedsis/app/custom/.gitkeep", "surgfl/__init__.py", "surgfl/py.typed"} <= packed


def test_every_slow_test_is_found_by_the_word_that_its_file_has(overlooked):
    """In a run of all files; see `pytest_ignore_collect` of tests/conftest.py."""
    assert overlooked == []
