"""Store a server's jobs and results in its own startup kit.

FLARE's own kits use a folder in /tmp, which a restart empties and which all deployments of a machine share.
"""

import os

from nvflare.app_common.storages.filesystem_storage import FilesystemStorage


class KitStorage(FilesystemStorage):
    """FLARE's file storage below a folder of the startup kit, the working folder of the server and of its jobs."""

    def __init__(self, folder: str = ".") -> None:
        super().__init__(root_dir=os.path.abspath(folder))
