"""List the files that a job may contain: `meta.json`, and two JSON files in the `config` folder of each app.

FLARE searches a job's `config` folder for configurations in several formats, and a package there stays on disk after
the job. Each party therefore refuses a job with any other file before unpacking it.
"""

import io
import zipfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import PurePosixPath

from shared_components.common.sanitise import one_line

META, CONFIG, CUSTOM = "meta.json", "config", "custom"
SERVER_CONFIG, CLIENT_CONFIG = "config_fed_server.json", "config_fed_client.json"
SIGNATURES = frozenset({".__nvfl_sig.json", ".__nvfl_submitter.crt"})  # written by FLARE into signed jobs
PAPERS = frozenset({"README.md", "LICENSE"})  # files of a job folder that no party reads
LARGEST_FILE = 1_000_000  # bytes of a configuration
LARGEST_CODE = 100_000_000  # bytes of all files in `custom` folders; only parties that permit code accept any


class JobFileError(ValueError):
    """A job contains a forbidden file."""


def check_app_zip(data: object) -> None:
    """Check the app that a server deploys before it is unpacked; JobFileError for no zip, or a forbidden file."""
    try:
        if not isinstance(data, bytes):
            raise zipfile.BadZipFile
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            entries = archive.infolist()
    except (zipfile.BadZipFile, NotImplementedError, OSError, ValueError):
        raise JobFileError("the app is no readable zip archive") from None
    _check(entries, is_app_file, depth=0)


def check_job_zip(job: str, entries: Iterable[zipfile.ZipInfo]) -> None:
    """Check the entries of a submitted job, all in the folder ``job``; raise JobFileError for a forbidden file."""
    depth = len(PurePosixPath(job).parts)

    def is_job_file(parts: Sequence[str]) -> bool:
        inner = parts[depth:]
        in_job = {META} | SIGNATURES | PAPERS
        return "/".join(parts[:depth]) == job and (inner[0] in in_job if len(inner) == 1 else is_app_file(inner[1:]))

    _check(entries, is_job_file, depth=depth + 1)


def is_app_file(parts: Sequence[str]) -> bool:
    """Return whether an app may contain the file with these path components, relative to the app's folder."""
    match list(parts):
        case [name]:
            return name in SIGNATURES
        case [folder, name] if folder == CONFIG:
            return name in {SERVER_CONFIG, CLIENT_CONFIG} | SIGNATURES
        case [folder, *_]:
            return folder == CUSTOM
    return False


def _check(entries: Iterable[zipfile.ZipInfo], allowed: Callable[[Sequence[str]], bool], *, depth: int) -> None:
    """Check names and declared sizes; ``depth`` is the number of components before an app's `custom` folder."""
    seen: set[str] = set()
    code = 0
    for entry in entries:
        if entry.is_dir():
            continue
        name, printable_name = entry.filename, one_line(entry.filename, 120)
        parts = name.split("/")
        if set(parts) & {"", ".", ".."} or "\\" in name or not allowed(parts):
            raise JobFileError(
                f"the job contains {printable_name}; a job consists of {META} and, in each app, "
                f"{CONFIG}/{SERVER_CONFIG} and {CONFIG}/{CLIENT_CONFIG}: remove the file"
            )
        if name in seen:
            raise JobFileError(f"the job contains {printable_name} twice")
        seen.add(name)
        if parts[depth : depth + 1] == [CUSTOM]:
            code += entry.file_size
        elif entry.file_size > LARGEST_FILE:
            raise JobFileError(f"{printable_name} has {entry.file_size} bytes, more than the limit of {LARGEST_FILE}")
    if code > LARGEST_CODE:
        raise JobFileError(f"the job's {CUSTOM} folders have {code} bytes, more than the limit of {LARGEST_CODE}")
