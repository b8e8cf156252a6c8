"""A function of FLARE is replaced, or the process ends."""

import ast
import functools
import hashlib
import os
from pathlib import Path
from types import SimpleNamespace

import nvflare
import pytest
from nvflare.apis.event_type import EventType

from shared_components.flare.lost_sites import LostSites
from shared_components.flare.patches.replace import REPLACES, VERSION, replace, source_hash

FLARE = Path(__file__).resolve().parents[3] / "shared_components" / "flare"


class Ended(BaseException):
    """Raised instead of ending the process; FLARE's handlers do not swallow it."""


@pytest.fixture(autouse=True)
def end_of_process(monkeypatch):
    def ended(code):
        raise Ended(code)

    monkeypatch.setattr(os, "_exit", ended)


class Theirs:
    """Functions like FLARE's."""

    def double(self, number):
        return 2 * number

    @staticmethod
    def triple(number):
        return 3 * number

    def inner(self):
        return 1

    @functools.wraps(double)
    def wrapped(self, number):
        return -1


def thrice(own, self, number):
    return own(self, number) + number


@pytest.fixture
def theirs():
    """A copy of the class that a test may change."""
    return type("Theirs", (), dict(vars(Theirs)))


DOUBLE, TRIPLE = source_hash(Theirs.double), source_hash(Theirs.triple)


def test_a_function_is_replaced_once_and_a_static_method_stays_static(theirs):
    for _ in range(2):
        replace(theirs, "double", thrice, sha256=DOUBLE)
    assert theirs().double(2) == 6 and getattr(theirs.double, REPLACES)(None, 2) == 4
    replace(theirs, "triple", lambda own, number: own(number) + 1, sha256=TRIPLE)
    assert theirs.triple(2) == theirs().triple(2) == 7


def test_the_hash_belongs_to_the_source_without_indentation_and_to_the_code_that_runs(theirs):
    text = "def double(self, number):\n    return 2 * number"
    assert hashlib.sha256(text.encode()).hexdigest() == DOUBLE
    assert source_hash(theirs.wrapped) != DOUBLE == source_hash(theirs().double)
    assert source_hash(len) == source_hash(None) == source_hash(7) == ""


@pytest.mark.parametrize(
    ("name", "sha256", "version", "words"),
    [
        ("double", DOUBLE, "2.9.1", f"nvflare is 2.9.1, and SurgFL replaces functions of {VERSION}"),
        ("double", DOUBLE, "2.9.0rc1", "nvflare is 2.9.0rc1"),
        ("triple", DOUBLE, VERSION, "the source of tests.Theirs.triple is not the source in nvflare 2.9.0"),
        ("wrapped", DOUBLE, VERSION, "the source of tests.Theirs.wrapped is not the source in"),
        ("renamed", DOUBLE, VERSION, "nvflare has no tests.Theirs.renamed, which SurgFL replaces"),
        ("__doc__", "", VERSION, "is not the source in nvflare"),
    ],
)
def test_another_version_source_or_name_ends_the_process(
    theirs, name, sha256, version, words, monkeypatch, capsys, caplog
):
    theirs.__module__ = "tests"
    before = dict(vars(theirs))
    monkeypatch.setattr(nvflare, "__version__", version)
    with pytest.raises(Ended, match="1"):
        replace(theirs, name, thrice, sha256=sha256)
    error = capsys.readouterr().err
    assert words in error and error.endswith("install nvflare==2.9.0\n") and error.count("\n") == 1
    assert words in caplog.text and dict(vars(theirs)) == before


def test_only_replace_assigns_to_names_of_flare():
    assignments = []
    for path in sorted(FLARE.rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        imported = {
            (name.asname or name.name).partition(".")[0]
            for node in ast.walk(tree)
            if isinstance(node, ast.Import | ast.ImportFrom)
            and (getattr(node, "module", None) or node.names[0].name).startswith("nvflare")
            for name in node.names
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                root = ast.unparse(node.value).partition(".")[0]
                if root in imported | {"engine", "cell", "server", "kind", "sys"}:
                    assignments.append(f"{path.name}:{node.lineno} {ast.unparse(node)}")
            if isinstance(node, ast.Name) and node.id == "setattr" and path.name != "replace.py":
                assignments.append(f"{path.name}:{node.lineno} setattr")
    assert assignments == []


def test_the_installed_version_is_pinned():
    root = FLARE.parents[1]
    assert nvflare.__version__ == VERSION
    for file in ("setup.cfg", "requirements.txt", "shared_components/flare/deployment/requirements.lock"):
        lines = [line.strip(" \\") for line in (root / file).read_text().splitlines()]
        assert f"nvflare=={VERSION}" in lines, file


def test_a_component_ends_the_process_if_the_handler_of_lost_sites_cannot_be_installed(capsys):
    with pytest.raises(Ended):
        LostSites().handle_event(EventType.SYSTEM_START, SimpleNamespace(get_engine=lambda: None))
    assert "the handler of lost sites cannot be installed (AttributeError: " in capsys.readouterr().err
