"""Imports run one way, and training imports little: a simulator starts a process for every task."""

import ast
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "shared_components"

# What each room may import of ours besides itself, from the bottom up. Tasks and methods are loaded by name.
ROOMS: dict[str, set[str]] = {
    "common": set(),
    "data": {"common"},
    "scenes": {"common", "data"},
    "networks": {"common"},
    "core": {"common", "data", "networks"},
    "reporting": {"common", "data", "networks", "core"},
    "tasks": {"common", "data", "core", "reporting"},  # reporting for pictures, late
    "methods": {"common", "networks", "core"},
    "inference": {"common", "data", "networks", "core"},
    "federation": {"common", "data", "scenes", "networks", "core", "reporting"},  # scenes: late, for sites without data
    "bundle_engines": {"common", "data", "networks", "core", "inference"},
    "flare": {"common", "data", "networks", "core", "reporting", "federation"},
    "experiments": {"common", "data", "scenes", "networks", "core", "reporting", "inference", "federation"},
    "weights": {"common", "data", "scenes", "networks", "core", "reporting", "inference", "federation"},
    "commands": {
        "common", "data", "scenes", "networks", "core", "reporting", "inference", "federation", "bundle_engines",
        "flare", "experiments", "weights",
    },
}  # fmt: skip
# The only parts that may import these.
ONLY_IN: dict[str, set[str]] = {
    "nvflare": {"flare"}, "monai": {"bundle_engines"}, "ignite": {"bundle_engines"},
    "transformers": {"core", "networks"},
    "cryptography": {"flare", "federation"}, f"{PACKAGE}.methods": set(), f"{PACKAGE}.tasks": set(),
    "evidence": set(), "surgfl": set(), "bundles": set(), "nvflare_jobs": set(), "tests": set(),
}  # fmt: skip


@cache
def sources() -> list[Path]:
    return sorted((ROOT / PACKAGE).rglob("*.py"))


def part_of(module: str) -> str:
    """Return the first name below the package: ``shared_components.data.samples`` is of ``data``."""
    return module.removeprefix(f"{PACKAGE}.").partition(".")[0]


@cache
def module_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


@cache
def imports(path: Path) -> list[tuple[str, int]]:
    """Return every module that a file names in an import, late ones included, with the line."""
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), str(path))):
        if isinstance(node, ast.Import):
            found += [(alias.name, node.lineno) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: imports are absolute"
            found += [(f"{node.module}.{alias.name}", node.lineno) for alias in node.names]
    return found


def within(module: str, package: str) -> bool:
    return module == package or module.startswith(f"{package}.")


@cache
def ours(path: Path) -> list[tuple[str, int]]:
    """Return our own modules that a file imports; a name imported from a module counts as that module."""
    files = {module_of(file) for file in sources()}
    return [
        (module if module in files else module.rpartition(".")[0], line)
        for module, line in imports(path)
        if within(module, PACKAGE)
    ]


def test_there_are_fifteen_rooms_and_the_command_line():
    top = ROOT / PACKAGE
    rooms = {path.name for path in top.iterdir() if (path / "__init__.py").is_file()}
    assert rooms == set(ROOMS) and len(rooms) <= 15
    assert {path.name for path in top.glob("*.py")} == {"__init__.py", "cli.py"}
    below = [set(list(ROOMS)[:number]) for number in range(len(ROOMS))]
    assert all(known <= allowed for known, allowed in zip(ROOMS.values(), below, strict=True)), "a way back"


@pytest.mark.parametrize("room", ROOMS)
def test_every_room_says_in_one_sentence_what_it_is_and_imports_run_one_way(room):
    said = ast.get_docstring(ast.parse((ROOT / PACKAGE / room / "__init__.py").read_text()))
    assert said and said.partition("\n")[0].endswith(".")
    wrong = [
        f"{path.relative_to(ROOT)}:{line} imports {module}"
        for path in sources()
        if part_of(module_of(path)) == room
        for module, line in ours(path)
        if module != PACKAGE and part_of(module) not in ROOMS[room] | {room}
    ]
    assert wrong == []


@pytest.mark.parametrize("package", ONLY_IN)
def test_heavy_libraries_and_named_parts_are_imported_where_they_belong(package):
    """Methods and tasks are loaded by name, and do not import each other."""
    wrong = [
        f"{path.relative_to(ROOT)}:{line} imports {module}"
        for path in sources()
        if part_of(module_of(path)) not in ONLY_IN[package]
        for module, line in imports(path)
        if within(module, package)
    ]
    assert wrong == []


def folder_of(path: Path) -> str:
    """Return a file's folder below the package: ``federation.server``; empty for ``cli.py``."""
    return ".".join(path.relative_to(ROOT / PACKAGE).parent.parts)


def test_no_two_folders_import_each_other_and_no_circle_of_files():
    files = {module_of(path): path for path in sources()}
    pairs = {
        (folder_of(path), folder_of(files[module]))
        for path in sources()
        for module, _ in ours(path)
        if module in files and folder_of(files[module]) != folder_of(path)
    }
    assert len(pairs) > len({folder_of(path) for path in sources()})
    assert {pair for pair in pairs if pair < pair[::-1] and pair[::-1] in pairs} == set()
    needs = {name: {module for module, _ in ours(path)} & set(files) - {name} for name, path in files.items()}
    assert sum(map(len, needs.values())) > len(files)
    while free := [name for name, needed in needs.items() if not needed & set(needs)]:
        for name in free:
            del needs[name]
    assert needs == {}, "these import each other, or something that does"


TRAINING = """
import sys
from shared_components.flare.executor import SiteExecutor, _import_ahead
from shared_components.flare.filters import DeclaredPiecesOnly
_import_ahead()
from shared_components.core.bundle import load_bundle
from shared_components.networks.bundle_config import build_network, weightless
from shared_components.federation.setup import find_site
from shared_components.federation.site import runner
from shared_components.core.method import load_method, method_names
from shared_components.core.text.site_text import encode
from shared_components.data.readers import find_reader
for name in ("pvt_fpn", "pfedsis", "fl_endovit"):
    build_network(load_bundle(name).network)
    weightless(load_bundle(name).network)
for name in method_names():
    load_method(name)
encode("precomputed", "nephrectomy")
heavy = "monai ignite transformers pandas matplotlib tensorboard PIL scipy sklearn skimage torch._dynamo".split()
print(*[name for name in heavy if name in sys.modules])
"""


def test_what_trains_imports_no_heavy_library():
    """MONAI costs a task 4.8 s, transformers 2.5 s, torch's compiler 1.6 s; TensorBoard is later, PIL never."""
    done = subprocess.run([sys.executable, "-c", TRAINING], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == []


def test_no_file_of_the_library_is_long():
    long = {str(path.relative_to(ROOT)): n for path in sources() if (n := len(path.read_text().splitlines())) > 400}
    assert long == {}
