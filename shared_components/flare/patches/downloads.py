"""At an administrator: let a download write below its own folder alone, whatever the server calls its files.

FLARE 2.9 joins the names of files and the transaction's id, as the server's reply gives them, to a path: a hostile
server would write any file of the administrator, and have any folder moved or removed.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from nvflare.fuel.hci.proto import MetaKey, ProtoKey

from shared_components.common.sanitise import one_line
from shared_components.flare.patches.replace import replace

PULL = "db086d6cc8d709dc49841c16b1a0c33427f20199dd4db6b83d08aaa5819c914e"
FOLDER = "f3f0004e0cc5e10e158a83f60120c9a5d1f9d48e7603f4381d86f214f09e7dbe"
FILE = "806f1ae53803cb227c25e8820fcdf618d7cdfd6d62db411e848ed6541e869231"


def keep_in_place() -> None:
    """Refuse other names in the downloads of this process."""
    from nvflare.fuel.hci.client.file_transfer import FileTransferModule

    replace(FileTransferModule, "pull_folder", _at_its_place, sha256=PULL)
    replace(FileTransferModule, "_tx_path", _of_plain_names, sha256=FOLDER)
    replace(FileTransferModule, "pull_binary_file", _below_its_folder, sha256=FILE)


def _at_its_place(pull: Callable[..., Any]) -> Callable[..., Any]:
    def checked(module: Any, args: list[str], ctx: Any) -> Any:
        # FLARE moves what lies there to the administrator's folder; of no files it is the server's word
        result = pull(module, args, ctx)
        location = (result.get(ProtoKey.META) or {}).get(MetaKey.LOCATION)
        if location and not Path(location).resolve().is_relative_to(Path(module.download_dir).resolve()):
            raise ValueError(f"the server has the download at {one_line(location, 80)!r}; ask who runs it")
        return result

    return checked


def _of_plain_names(path_of: Callable[..., str]) -> Callable[..., str]:
    def checked(module: Any, tx_id: str, folder_name: str) -> str:
        for name in (tx_id, folder_name):
            if not isinstance(name, str) or Path(name).name != name:
                raise ValueError(f"the server calls a download {one_line(name, 80)!r}; ask who runs it")
        return path_of(module, tx_id, folder_name)

    return checked


def _below_its_folder(pull: Callable[..., Any]) -> Callable[..., Any]:
    def checked(module: Any, args: list[str], ctx: Any) -> Any:
        if len(args) > 5:  # of fewer FLARE says what is missing
            folder = Path(module._tx_path(args[2], args[4])).resolve()
            if not (folder / args[5]).resolve().is_relative_to(folder):
                raise ValueError(f"the server has a file of the download at {one_line(args[5], 80)!r}; ask who runs it")
        return pull(module, args, ctx)

    return checked
