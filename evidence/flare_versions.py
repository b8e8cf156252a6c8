"""Compare the functions of FLARE that our protections depend on in two versions; see docs/how-to/upgrade-flare.md.

python -m evidence.flare_versions 2.9.1                      # beside the newest supported version
python -m evidence.flare_versions new.whl --before 2.9.0     # a wheel's file instead of a version
"""

import argparse
import ast
import difflib
import subprocess
import sys
import tempfile
import textwrap
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

from shared_components.flare.patches.replace import hash_text
from shared_components.flare.patches.versions import SOURCES, SUPPORTED

Read = Callable[[str], str | None]  # the text of a module by its path in a package, such as nvflare/cli.py


def main() -> int:
    """Print the functions that have changed; return 1 if one is missing, so that no entry of the table can be right."""
    parser = argparse.ArgumentParser(prog="python -m evidence.flare_versions")
    parser.add_argument("version", help="new version of FLARE, or the file of its wheel")
    parser.add_argument("--before", default=SUPPORTED[-1], help="earlier version or wheel; default: %(default)s")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        before, after = (open_wheel(words, Path(folder)) for words in (args.before, args.version))
        differences = dict(changes(before, after))
    missing = [path for path, diff in differences.items() if not diff]
    print(f"{len(differences)} of {len(SOURCES)} functions differ between {args.before} and {args.version}")
    for path, diff in differences.items():
        print(f"\n{path}\n{diff or f'nvflare {args.version} has no such function: adapt the protection'}")
    print(f'\nEntries of CHANGED["{args.version}"] that differ from the first supported version:')
    for path, sha256 in SOURCES.items():
        if path not in missing and (now := hash_text(function_source(after, path))) != sha256:
            print(f'        "{path}":\n            "{now}",')
    return 1 if missing else 0


def changes(before: Read, after: Read) -> Iterator[tuple[str, str]]:
    """Yield each function that differs, with its diff, which is empty if the later version has no such function."""
    for path in SOURCES:
        old, new = function_source(before, path), function_source(after, path)
        if not new:
            yield path, ""
        elif hash_text(old) != hash_text(new):
            yield (
                path,
                "\n".join(difflib.unified_diff(old.splitlines(), new.splitlines(), "before", "after", lineterm="")),
            )


def function_source(read: Read, path: str) -> str:
    """Return a function's source without indentation, including its decorators; empty if there is no such function."""
    names = path.split(".")
    for length in range(len(names) - 1, 0, -1):
        if (text := read("/".join(names[:length]) + ".py")) is not None:
            break
    else:
        return ""
    node: ast.AST = ast.parse(text)
    for name in names[length:]:
        node = next((part for part in ast.iter_child_nodes(node) if name in _names(part)), ast.Pass())
    if isinstance(node, ast.ImportFrom):
        return function_source(read, f"{node.module}.{names[-1]}")
    if not isinstance(node, ast.FunctionDef):
        return ""
    first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
    return textwrap.dedent("\n".join(text.splitlines()[first - 1 : node.end_lineno]))


def _names(node: ast.AST) -> list[str]:
    """Return the names that a definition or an import gives to a module or class."""
    if isinstance(node, ast.ImportFrom):
        return [alias.name for alias in node.names if alias.asname is None]
    return [node.name] if isinstance(node, ast.FunctionDef | ast.ClassDef) else []


def open_wheel(words: str, folder: Path) -> Read:
    """Return a function that reads modules of a wheel: of a file, or of a version, which pip downloads."""
    path = Path(words)
    if not path.is_file():
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder / words)]
        subprocess.run([*command, f"nvflare=={words}"], check=True)
        (path,) = (folder / words).glob("*.whl")
    wheel = zipfile.ZipFile(path)
    names = set(wheel.namelist())
    return lambda name: wheel.read(name).decode() if name in names else None


if __name__ == "__main__":
    sys.exit(main())
