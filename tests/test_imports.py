"""Imports run one way, and training imports little: a simulator starts a process for every task."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "shared_components"
METHODS, TASKS = f"{PACKAGE}.methods", f"{PACKAGE}.tasks"

# What each part may import of ours besides itself, from the bottom up.
ALLOWED: dict[str, set[str]] = {
    "arguments": set(),
    "card": set(),
    "atomic": set(),
    "machine": set(),
    "plain_yaml": set(),
    "parts": {"arguments"},
    "partition": {"parts"},
    "task": {
        "arguments",
        "card",
        "data",
        "drawing",
        "tasks",
    },  # make_task lists the folder; nothing at module level
    "tasks": {
        "arguments",
        "card",
        "data",
        "drawing",
        "losses",
        "metrics",
        "reporting",
        "task",
    },  # pictures, late
    "method": {
        "card",
        "extras",
        "partition",
        "task",
        "two_paths",
        "methods",
    },  # load_method lists the folder; nothing at module level
    "losses": {"data"},
    "metrics": {"data"},
    "networks": set(),
    "two_paths": set(),
    "drawing": set(),
    "progress": set(),
    "plain_text": set(),
    "board": {"plain_text", "progress"},
    "data": {"atomic", "drawing", "plain_yaml", "progress"},
    "coarser": {"data"},
    "preparation": {"data", "method", "partition"},
    "privacy": {"partition"},
    "untold": {"checkpoints", "data", "method", "partition", "preparation"},
    "text": {"arguments", "checkpoints", "data", "method", "shipped"},
    "bundle_config": {"arguments", "network_arguments", "no_code"},
    "network_arguments": {"no_code"},
    "no_code": set(),
    "extras": {"partition"},
    "bundle_files": {"atomic", "bundle_config", "checkpoints", "shipped"},
    "shipped": {"bundle_config", "card", "checkpoints"},
    "deployment": {
        "arguments",
        "atomic",
        "bundle_config",
        "data",
        "federation",
        "no_code",
        "plain_text",
        "plain_yaml",
    },
    "onnx_file": {"atomic"},
    "start": {"card", "checkpoints", "data", "parts", "shipped"},
    "checkpoints": {"atomic", "no_code", "plain_text"},
    "secure_sums": {"partition"},
    "inference": {
        "atomic",
        "arguments",
        "bundle_config",
        "data",
        "drawing",
        "evaluation",
        "plain_text",
        "shipped",
        "task",
    },
    "trained": {"bundle_config", "checkpoints", "data", "parts", "task", "untold"},
    "rules": {"arguments", "parts", "partition"},
    "sharpness": {"method"},
    "early_stopping": {"method"},
    "serq_equations": {"method", "two_paths"},
    "serq": {"arguments", "early_stopping", "method", "partition", "serq_equations"},
    "objectives": {"method", "partition", "parts", "losses"},
    "aggregators": {"card", "losses", "method", "partition", "parts"},
    "methods": {
        "arguments",
        "extras",
        "method",
        "partition",
        "parts",
        "rules",
        "sharpness",
        "serq",
        "objectives",
        "aggregators",
        "losses",
        "text",
        "two_paths",
    },
}
# The only parts that may import these.
ONLY_IN: dict[str, set[str]] = {
    "nvflare": {"flare"},
    "monai": {"bundle_engines"},
    "ignite": {"bundle_engines"},
    "transformers": {"text"},
    "bundles": set(),
    "nvflare_jobs": set(),
    "tests": set(),
    f"{PACKAGE}.flare": {"flare", "commands"},
    "cryptography": {"deployment", "secure_sums"},
    f"{PACKAGE}.deployment": {"deployment", "flare", "commands"},
    f"{PACKAGE}.federation": {"flare", "federation", "deployment", "comparison", "pretraining", "commands"},
    f"{PACKAGE}.comparison": {"comparison", "commands"},
    f"{PACKAGE}.pretraining": {"pretraining", "commands"},
    f"{PACKAGE}.shipping": {"shipping", "commands"},
    METHODS: {"method"},
    TASKS: {"task"},
}


def sources() -> list[Path]:
    return sorted((ROOT / PACKAGE).rglob("*.py"))


def part_of(module: str) -> str:
    """Return the first name below the package: ``shared_components.data.sites`` is of ``data``."""
    return module.removeprefix(f"{PACKAGE}.").partition(".")[0]


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def imports(path: Path) -> list[tuple[str, int]]:
    """Return every module that a file names in an import, late ones included, with the line."""
    found = []
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if isinstance(node, ast.Import):
            found += [(alias.name, node.lineno) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: imports are absolute"
            found += [(f"{node.module}.{alias.name}", node.lineno) for alias in node.names]
    return found


def within(module: str, package: str) -> bool:
    return module == package or module.startswith(f"{package}.")


def test_there_are_sources_and_every_named_part_exists():
    parts = {part_of(module_of(path)) for path in sources()}
    assert len(sources()) > 50 and set(ALLOWED) <= parts and {"flare", "federation"} <= parts


@pytest.mark.parametrize("part", ALLOWED)
def test_the_core_imports_one_way(part):
    """partition <- method <- {objectives, aggregators} <- methods; networks, losses and data know none of them."""
    wrong = [
        f"{path.relative_to(ROOT)}:{line} imports {module}"
        for path in sources()
        if part_of(module_of(path)) == part
        for module, line in imports(path)
        if within(module, PACKAGE) and part_of(module) not in ALLOWED[part] | {part}
    ]
    assert wrong == []


@pytest.mark.parametrize("package", ONLY_IN)
def test_outer_parts_and_heavy_libraries_are_imported_where_they_belong(package):
    """Methods do not import each other either: only `method` imports from their folder."""
    wrong = [
        f"{path.relative_to(ROOT)}:{line} imports {module}"
        for path in sources()
        if part_of(module_of(path)) not in ONLY_IN[package]
        for module, line in imports(path)
        if within(module, package)
    ]
    assert wrong == []


def test_no_two_parts_import_each_other():
    """Lists what each part needs and looks for a way back; late imports count."""
    needs: dict[str, set[str]] = {}
    for path in sources():
        part = part_of(module_of(path))
        ours = {part_of(module) for module, _ in imports(path) if within(module, f"{PACKAGE}")}
        needs.setdefault(part, set()).update(ours - {part})
    # the two exceptions: load_method and make_task find methods and tasks by listing their folders
    needs["method"].discard("methods")
    needs["task"].discard("tasks")
    pairs = [(a, b) for a in needs for b in needs[a] if a < b and a in needs.get(b, ())]
    assert pairs == []


TRAINING = f"""
import sys
from {PACKAGE}.flare.executor import SiteExecutor, _import_ahead
from {PACKAGE}.flare.filters import DeclaredPiecesOnly
_import_ahead()
from {PACKAGE}.bundle_config import build_network, load_bundle
from {PACKAGE}.federation import locate, site
from {PACKAGE}.method import load_method, method_names
from {PACKAGE}.data.readers import find_reader
for name in ("pvt_fpn", "pfedsis"):
    build_network(load_bundle(name).network)
for name in method_names():
    load_method(name)
heavy = "monai ignite transformers pandas matplotlib tensorboard PIL scipy sklearn skimage".split()
print(*[name for name in heavy if name in sys.modules])
"""


def test_what_trains_imports_no_heavy_library():
    """MONAI costs a task 4.8 s, transformers 2.5 s; TensorBoard comes after training, PIL never."""
    done = subprocess.run([sys.executable, "-c", TRAINING], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == []
