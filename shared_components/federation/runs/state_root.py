"""Folder of all runs of a party; a module without PyTorch, for the processes that train nothing."""

import os
from pathlib import Path

STATE_VARIABLE = "SURGFL_STATE"


def state_root(workspace_root: Path, *, simulator: bool) -> Path:
    """Return the folder of all runs: ``SURGFL_STATE``, or ``<workspace>-state`` beside a simulator's workspace.

    In a deployment it is ``surgfl`` in the startup kit, where FLARE removes only job folders.
    """
    if chosen := os.environ.get(STATE_VARIABLE):
        return Path(chosen).resolve()
    if simulator:  # workspace_root is <workspace>/<site>
        workspace = workspace_root.resolve().parent
        return workspace.with_name(f"{workspace.name}-state")
    return workspace_root.resolve() / "surgfl"
