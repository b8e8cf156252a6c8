"""Let an administrator's download write only below its own folder, whatever names the server gives to files.

FLARE 2.9 joins the file names and the transaction's id in the server's reply to a path. A hostile server could write
any file of the administrator, and have any folder moved or removed.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from nvflare.fuel.hci.proto import MetaKey, ProtoKey

from shared_components.common.sanitise import one_line
from shared_components.flare.patches.replace import replace


def restrict_downloads() -> None:
    """Refuse paths outside the download's folder in this process."""
    from nvflare.fuel.hci.client.file_transfer import FileTransferModule

    replace(FileTransferModule, "pull_folder", _check_location)
    replace(FileTransferModule, "_tx_path", _check_folder_names)
    replace(FileTransferModule, "pull_binary_file", _check_file_name)


def _check_location(pull: Callable[..., Any], module: Any, args: list[str], ctx: Any) -> Any:
    # FLARE moves this folder to the administrator's folder; if there are no files, the server chooses it
    result = pull(module, args, ctx)
    location = (result.get(ProtoKey.META) or {}).get(MetaKey.LOCATION)
    if location and not Path(location).resolve().is_relative_to(Path(module.download_dir).resolve()):
        raise _refusal("puts the download at", location)
    return result


def _check_folder_names(path_of: Callable[..., str], module: Any, tx_id: str, folder_name: str) -> str:
    for name in (tx_id, folder_name):
        if not isinstance(name, str) or Path(name).name != name:
            raise _refusal("calls a download", name)
    return path_of(module, tx_id, folder_name)


def _check_file_name(pull: Callable[..., Any], module: Any, args: list[str], ctx: Any) -> Any:
    if len(args) > 5:  # FLARE reports missing arguments
        folder = Path(module._tx_path(args[2], args[4])).resolve()
        if not (folder / args[5]).resolve().is_relative_to(folder):
            raise _refusal("puts a file of the download at", args[5])
    return pull(module, args, ctx)


def _refusal(action: str, name: object) -> ValueError:
    return ValueError(f"the server {action} {one_line(name, 80)!r}; ask who runs it")
