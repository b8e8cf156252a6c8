"""Let FLARE write the tensors that the server receives to files, instead of collecting an answer in memory.

FLARE 2.9 reads every tensor of an answer into memory before anybody sees the answer: nine sites that answer at once
take nine models. Its offload to the disk, which is meant for this, leaves each tensor in a file of its own, whose
folder goes with the last reference to it. Of an answer that is on its way it holds a tensor or two.
"""

import shutil
from pathlib import Path
from typing import Any

from nvflare.app_common.utils.tensor_disk_offload_context import _TENSOR_DISK_OFFLOAD_ROOT_DIR
from nvflare.fuel.utils.fobs import FOBSContextKey

ROOT, WANTED = _TENSOR_DISK_OFFLOAD_ROOT_DIR, FOBSContextKey.TENSOR_DISK_OFFLOAD


def receive_in_files(engine: Any, folder: Path | None) -> None:
    """Write the tensors of the answers to come below a folder, which is emptied the first time; None: to memory.

    A job's answers arrive at the cell of the job, which in a simulator is not the engine's own.
    """
    server = getattr(engine, "server", None)
    cell = getattr(server, "job_cell", None) or getattr(server, "cell", None)
    if cell is None:  # nothing is received over a network
        return
    if folder is not None and cell.get_fobs_context().get(ROOT) != str(folder):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        cell.update_fobs_context({ROOT: str(folder)})
    cell.update_fobs_context({WANTED: folder is not None})
