"""Let an administrator's download write only below its own folder, whatever names the server gives to files.

FLARE 2.9 joins the file names and the transaction's id in the server's reply to a path. A hostile server could write
any file of the administrator, and have any folder moved or removed.
"""

from contextlib import suppress
from pathlib import Path
from typing import Any

from nvflare.fuel.flare_api.flare_api import Session
from nvflare.fuel.hci.client.file_transfer import FileTransferModule
from nvflare.fuel.hci.proto import MetaKey, ProtoKey

from shared_components.common.sanitise import one_line
from shared_components.flare.patches.replace import expect


def open_session(administrator: str, kit: Path, *, timeout: float) -> Session:
    """Log in once with an administrator's kit, within ``timeout`` seconds, and restrict the session's downloads.

    Raises the exceptions of FLARE's `new_secure_session`, and RuntimeError if FLARE would use another download module.
    """
    session = Session(administrator, str(kit))
    session.api.auto_login_max_tries = 1
    (own,) = session.api.cmd_modules
    session.api.cmd_modules[:] = [Downloads(own.upload_dir, own.download_dir)]
    try:
        session.try_connect(timeout)
        check_commands(session.api)
    except Exception:
        with suppress(Exception):
            session.close()
        raise
    return session


def check_commands(api: Any) -> None:
    """Raise RuntimeError if a command of a session would download without our checks."""
    handlers = [entry.handler for entries in api.client_cmd_reg.cmd_map.values() for entry in entries]
    modules = [owner for handler in handlers if isinstance(owner := handler.__self__, FileTransferModule)]
    if not modules or not all(isinstance(module, Downloads) for module in modules):
        raise RuntimeError("FLARE downloads by an unrestricted module; see docs/how-to/upgrade-flare.md")


class Downloads(FileTransferModule):
    """FLARE's commands that transfer files; ValueError for a path outside the download's folder."""

    def __init__(self, upload_dir: str, download_dir: str) -> None:
        for name in ("pull_folder", "_tx_path", "pull_binary_file"):
            expect(FileTransferModule, name)  # overridden below
        super().__init__(upload_dir, download_dir)

    def pull_folder(self, args: list[str], ctx: Any) -> Any:
        """Download a folder; the folder that FLARE moves must be below the download folder."""
        result = super().pull_folder(args, ctx)
        location = (result.get(ProtoKey.META) or {}).get(MetaKey.LOCATION)  # the server's choice if there are no files
        if location and not Path(location).resolve().is_relative_to(Path(self.download_dir).resolve()):
            raise _refusal("puts the download at", location)
        return result

    def _tx_path(self, tx_id: str, folder_name: str) -> str:
        for name in (tx_id, folder_name):
            if not isinstance(name, str) or Path(name).name != name:
                raise _refusal("calls a download", name)
        return super()._tx_path(tx_id, folder_name)

    def pull_binary_file(self, args: list[str], ctx: Any) -> Any:
        """Download a file of a folder."""
        if len(args) > 5:  # FLARE reports missing arguments
            folder = Path(self._tx_path(args[2], args[4])).resolve()
            if not (folder / args[5]).resolve().is_relative_to(folder):
                raise _refusal("puts a file of the download at", args[5])
        return super().pull_binary_file(args, ctx)


def _refusal(action: str, name: object) -> ValueError:
    return ValueError(f"the server {action} {one_line(name, 80)!r}; ask who runs it")
