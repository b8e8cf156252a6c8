"""A function of FLARE is replaced, or the process ends."""

import ast
import functools
import hashlib
import importlib
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import nvflare
import pytest
from nvflare.apis.event_type import EventType
from nvflare.fuel.f3.cellnet.core_cell import CoreCell
from packaging.requirements import Requirement

from shared_components.flare.lost_sites import LostSites
from shared_components.flare.patches.connections import check_incoming_messages
from shared_components.flare.patches.replace import REMEDY, REPLACES, replace, source_hash
from shared_components.flare.patches.versions import CHANGED, SOURCES, SUPPORTED, expected_source

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


DOUBLE, TRIPLE = source_hash(Theirs.double), source_hash(Theirs.triple)


@pytest.fixture
def theirs(monkeypatch):
    """A copy of the class that a test may change, with its functions in the table of sources."""
    for name, sha256 in {"double": DOUBLE, "triple": TRIPLE, "wrapped": DOUBLE, "renamed": DOUBLE}.items():
        monkeypatch.setitem(SOURCES, f"tests.Theirs.{name}", sha256)
    monkeypatch.setitem(SOURCES, "tests.Theirs.__doc__", "")
    return type("Theirs", (), {**vars(Theirs), "__module__": "tests"})


def test_a_function_is_replaced_once_and_a_static_method_stays_static(theirs):
    for _ in range(2):
        replace(theirs, "double", thrice)
    assert theirs().double(2) == 6 and getattr(theirs.double, REPLACES)(None, 2) == 4
    replace(theirs, "triple", lambda own, number: own(number) + 1)
    assert theirs.triple(2) == theirs().triple(2) == 7


def test_the_hash_belongs_to_the_source_without_indentation_and_to_the_code_that_runs(theirs):
    text = "def double(self, number):\n    return 2 * number"
    assert hashlib.sha256(text.encode()).hexdigest() == DOUBLE
    assert source_hash(theirs.wrapped) != DOUBLE == source_hash(theirs().double)
    assert source_hash(len) == source_hash(None) == source_hash(7) == ""


@pytest.mark.parametrize("version", SUPPORTED)
def test_each_supported_version_may_have_its_own_source(theirs, version, monkeypatch):
    monkeypatch.setattr(nvflare, "__version__", version)
    monkeypatch.setitem(SOURCES, "tests.Theirs.double", "another")
    monkeypatch.setitem(CHANGED, version, {"tests.Theirs.double": DOUBLE})
    replace(theirs, "double", thrice)
    assert theirs().double(2) == 6


@pytest.mark.parametrize(
    ("name", "version", "words"),
    [
        ("double", "2.9.1", "nvflare is 2.9.1, and SurgFL supports 2.9.0 and 2.9.1rc5"),
        ("double", "2.9.0rc1", "nvflare is 2.9.0rc1, and SurgFL supports"),
        ("inner", "2.9.0", "the source of tests.Theirs.inner is not the source in nvflare 2.9.0"),  # not in the table
        ("wrapped", "2.9.1rc5", "the source of tests.Theirs.wrapped is not the source in nvflare 2.9.1rc5"),
        ("renamed", "2.9.0", "nvflare has no tests.Theirs.renamed, which a protection"),
        ("__doc__", "2.9.0", "is not the source in nvflare"),
    ],
)
def test_another_version_source_or_name_ends_the_process(theirs, name, version, words, monkeypatch, capsys, caplog):
    before = dict(vars(theirs))
    monkeypatch.setattr(nvflare, "__version__", version)
    with pytest.raises(Ended, match="1"):
        replace(theirs, name, thrice)
    error = capsys.readouterr().err
    assert words in error and error.endswith(f"{REMEDY}\n") and error.count("\n") == 1
    assert words in caplog.text and dict(vars(theirs)) == before


def installed(path):
    """Return a function of the installed FLARE by its path."""
    module, _, name = path.rpartition(".")
    try:
        return getattr(importlib.import_module(module), name)
    except ImportError:
        return getattr(installed(module), name)


@pytest.mark.parametrize("path", SOURCES)
def test_the_table_contains_the_sources_of_the_installed_flare(path):
    present = installed(path)
    own = getattr(present, REPLACES, present)  # another test may have replaced it in this process
    assert source_hash(own) == expected_source(path, nvflare.__version__) != ""


def test_the_table_contains_a_source_per_version_and_nothing_for_another_version():
    assert set(CHANGED) < set(SUPPORTED) and nvflare.__version__ in SUPPORTED
    assert all(changed.keys() <= SOURCES.keys() for changed in CHANGED.values())
    assert all(re.fullmatch("[0-9a-f]{64}", expected_source(path, of)) for path in SOURCES for of in SUPPORTED)
    assert not any(expected_source(path, "2.9.2") for path in SOURCES) and not expected_source("nvflare.x", "2.9.0")


HANDLER = """
import sys
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_component import FLComponent
from nvflare.apis.fl_context import FLContext
from nvflare.apis.utils.event import fire_event_to_components

class Ours(FLComponent):
    def handle_event(self, event_type, fl_ctx):
        {call}

fire_event_to_components(EventType.SYSTEM_START, [Ours()], FLContext())
print("unprotected")
"""
RAISES = "raise AttributeError('add_incoming_filter')"
GONE = "from shared_components.flare.patches import replace; replace.replace(sys, 'gone', None)"


@pytest.mark.parametrize(("call", "code", "printed"), [(RAISES, 0, "unprotected"), (GONE, 1, "")])
def test_flares_handlers_swallow_exceptions_but_not_the_end_of_the_process(call, code, printed):
    ended = subprocess.run(
        [sys.executable, "-c", HANDLER.format(call=call)], capture_output=True, text=True, timeout=60
    )
    assert (ended.returncode, ended.stdout.strip()) == (code, printed), ended.stderr[-2000:]
    assert ("nvflare has no sys.gone, which a protection of SurgFL needs; this process ends" in ended.stderr) == bool(
        code
    )


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


def test_packages_and_kits_pin_the_first_version_and_users_may_install_each():
    root = FLARE.parents[1]
    for file in ("requirements.txt", "shared_components/flare/deployment/requirements.lock"):
        lines = [line.strip(" \\") for line in (root / file).read_text().splitlines()]
        assert f"nvflare=={SUPPORTED[0]}" in lines, file
    (line,) = re.findall("^    (nvflare[<>=!].*)$", (root / "setup.cfg").read_text(), re.MULTILINE)
    permitted = Requirement(line).specifier
    assert not permitted.prereleases, "pip would install a pre-release that nobody asked for"
    assert all(permitted.contains(version, prereleases=True) for version in SUPPORTED)
    assert not any(permitted.contains(version, prereleases=True) for version in ("2.8.2", "2.9.1", "2.9.2rc1", "2.9.2"))


@pytest.mark.parametrize("install", [check_incoming_messages, LostSites])
def test_the_process_ends_if_flare_has_renamed_the_function_that_receives_messages(install, monkeypatch, capsys):
    monkeypatch.delattr(CoreCell, "_process_received_msg")
    with pytest.raises(Ended):
        install()
    assert "nvflare has no nvflare.fuel.f3.cellnet.core_cell.CoreCell._process_rec" in capsys.readouterr().err


def test_a_component_ends_the_process_if_the_handler_of_lost_sites_cannot_be_installed(capsys):
    with pytest.raises(Ended):
        LostSites().handle_event(EventType.SYSTEM_START, SimpleNamespace(get_engine=lambda: None))
    assert "the handler of lost sites cannot be installed (AttributeError: " in capsys.readouterr().err
