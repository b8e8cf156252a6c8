"""Execute a notebook's code cells in order in one namespace, as Jupyter would, without Jupyter."""

import ast
import base64
import contextlib
import io
import json
from pathlib import Path
from typing import Any

PICTURE = "image/jpeg"


def executed(path: Path) -> dict[str, Any]:
    """Return a notebook (nbformat 4) with the outputs that its code cells give in the working directory.

    A cell's outputs are what it prints and the value of its last expression: as a picture where it has a
    `_repr_jpeg_`, else as text.
    """
    notebook: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    namespace: dict[str, Any] = {"__name__": "__main__"}
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    for number, cell in enumerate(cells, start=1):
        cell["outputs"] = _outputs("".join(cell["source"]), f"{path.name}, cell {number}", namespace, number)
        cell["execution_count"] = number
    return notebook


def _outputs(code: str, name: str, namespace: dict[str, Any], number: int) -> list[dict[str, Any]]:
    body = ast.parse(code, name).body
    last = ast.Expression(body.pop().value) if isinstance(body[-1], ast.Expr) else None
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(compile(ast.Module(body, []), name, "exec"), namespace)
        value = None if last is None else eval(compile(last, name, "eval"), namespace)
    found: list[dict[str, Any]] = []
    if text := printed.getvalue():
        found.append({"output_type": "stream", "name": "stdout", "text": text.splitlines(keepends=True)})
    if value is not None:
        data = {"text/plain": [repr(value)]}
        if hasattr(value, "_repr_jpeg_"):
            data = {PICTURE: base64.b64encode(value._repr_jpeg_()).decode(), "text/plain": ["a picture"]}
        found.append({"output_type": "execute_result", "execution_count": number, "data": data, "metadata": {}})
    return found
