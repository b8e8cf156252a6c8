"""Several files that change together, or not at all."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path


def write_together(contents: Mapping[Path, bytes]) -> None:
    """Write files by path beside their places, and rename them once all are written; an error puts the old ones back.

    Folders are made.
    """
    beside = {path: path.with_name(f".{path.name}.{os.getpid()}") for path in contents}
    before = {path: path.read_bytes() if path.is_file() else None for path in contents}
    renamed: list[Path] = []
    try:
        for path, content in contents.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            beside[path].write_bytes(content)
        for path, new in beside.items():
            os.replace(new, path)
            renamed.append(path)
    except BaseException:
        for path in renamed:
            old = before[path]
            if old is None:
                path.unlink()
            else:
                path.write_bytes(old)
        raise
    finally:
        for path in beside.values():
            path.unlink(missing_ok=True)
