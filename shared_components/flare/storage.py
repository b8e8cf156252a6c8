"""Where a server keeps jobs and results: in its own startup kit, wherever that lies.

FLARE's own kits name a folder under /tmp, which a restart empties and which all deployments of a machine share.
"""

from __future__ import annotations

import os

from nvflare.app_common.storages.filesystem_storage import FilesystemStorage


class KitStorage(FilesystemStorage):
    """FLARE's storage in files, below a folder of the startup kit.

    Args:
        folder: Relative to the kit, which FLARE makes the working folder of the server and of its jobs.
    """

    def __init__(self, folder: str = ".") -> None:
        super().__init__(root_dir=os.path.abspath(folder))
