"""examples/python.ipynb: every cell is executed, and shows what it is committed with."""

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.docs.notebook import executed

NOTEBOOK = Path(__file__).resolve().parents[2] / "examples" / "python.ipynb"
SMALLER = (
    (r"--frames 6 (.*)--height 192 --width 256", r"--frames 2 \1--height 64 --width 96"),
    (r"steps=40", r"steps=1, size=(32, 64)"),
    (r'rounds=3, training={"iterations": 20}', r'rounds=1, training={"iterations": 1, "height": 32, "width": 64}'),
)
"""(pattern, replacement): what takes minutes, made smaller."""


@pytest.mark.slow
def test_every_cell_of_the_notebook_gives_outputs_of_the_committed_kind(tmp_path, monkeypatch, programs):
    notebook = json.loads(NOTEBOOK.read_text())
    shown = kinds(notebook)
    changed = 0
    for cell in notebook["cells"]:
        for pattern, replacement in SMALLER:
            code, count = re.subn(pattern, replacement, "".join(cell["source"]))
            cell["source"], changed = code.splitlines(keepends=True), changed + count
    assert changed == len(SMALLER)
    (tmp_path / NOTEBOOK.name).write_text(json.dumps(notebook))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", os.pathsep.join([str(programs), str(Path(sys.executable).parent), os.environ["PATH"]]))
    assert kinds(executed(tmp_path / NOTEBOOK.name)) == shown
    assert NOTEBOOK.stat().st_size < 200_000


def kinds(notebook: dict[str, Any]) -> list[list[tuple[str, int]]]:
    """Return of each code cell the kinds of its outputs: pictures, values, and how many lines it prints."""
    cells = [cell["outputs"] for cell in notebook["cells"] if cell["cell_type"] == "code"]
    return [
        [(next(iter(one.get("data", {"text": 0}))), len(one.get("text", ()))) for one in outputs] for outputs in cells
    ]
