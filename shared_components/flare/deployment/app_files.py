"""The files that a job may consist of: `meta.json`, and two JSON files in the `config` folder of each app.

FLARE searches a job's `config` folder and everything below it for configurations in several formats, and a package
there stays on disk after the job. A party therefore refuses a job with any other file, before it unpacks the job.
"""

import io
import zipfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import PurePosixPath

from shared_components.common.sanitise import one_line

META, CONFIG, CUSTOM = "meta.json", "config", "custom"
SERVER_CONFIG, CLIENT_CONFIG = "config_fed_server.json", "config_fed_client.json"
SIGNATURES = frozenset({".__nvfl_sig.json", ".__nvfl_submitter.crt"})
"""Files in the folders of a signed job, written by FLARE: signatures, and the certificate of who has signed."""
PAPERS = frozenset({"README.md", "LICENSE"})
"""Files of a job folder that no party reads."""
LARGEST_FILE = 1_000_000
"""Maximum size of a configuration, in bytes."""
LARGEST_CODE = 100_000_000
"""Maximum size of all files in `custom` folders, in bytes; only parties that permit code accept any."""
LONGEST_NAME = 120  # characters of a file name that a message repeats


class JobFileError(ValueError):
    """A job contains a file that no job may contain; the message is one sentence."""


def check_app_zip(data: object) -> None:
    """Check the zipped app that a server deploys, before it is unpacked.

    Raises:
        JobFileError: It is no zip archive, or contains a file that no app may contain.
    """
    try:
        if not isinstance(data, bytes):
            raise zipfile.BadZipFile
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            entries = archive.infolist()
    except (zipfile.BadZipFile, NotImplementedError, OSError, ValueError):
        raise JobFileError("the app is no zip archive that can be read") from None
    _check(entries, is_app_file, depth=0)


def check_job_zip(job: str, entries: Iterable[zipfile.ZipInfo]) -> None:
    """Check the entries of a submitted job, whose names begin with the name of the job's folder.

    Raises:
        JobFileError: The job contains a file that no job may contain.
    """
    depth = len(PurePosixPath(job).parts)
    _check(entries, lambda parts: "/".join(parts[:depth]) == job and is_job_file(parts[depth:]), depth=depth + 1)


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


def is_job_file(parts: Sequence[str]) -> bool:
    """Return whether a job may contain the file with these path components, relative to the job's folder."""
    return parts[0] in {META} | SIGNATURES | PAPERS if len(parts) == 1 else is_app_file(parts[1:])


def _check(entries: Iterable[zipfile.ZipInfo], allowed: Callable[[Sequence[str]], bool], *, depth: int) -> None:
    """Check names and declared sizes; an app's own folders are at ``depth`` in a name."""
    seen: set[str] = set()
    code = 0
    for entry in entries:
        if entry.is_dir():
            continue
        name, text = entry.filename, one_line(entry.filename, LONGEST_NAME)
        parts = name.split("/")
        if set(parts) & {"", ".", ".."} or "\\" in name or not allowed(parts):
            raise JobFileError(
                f"the job contains {text}; a job consists of {META} and, in each app, {CONFIG}/{SERVER_CONFIG} and "
                f"{CONFIG}/{CLIENT_CONFIG}: remove the file"
            )
        if name in seen:
            raise JobFileError(f"the job contains {text} twice")
        seen.add(name)
        if parts[depth : depth + 1] == [CUSTOM]:
            code += entry.file_size
        elif entry.file_size > LARGEST_FILE:
            raise JobFileError(f"{text} has {entry.file_size} bytes; a file of a job has at most {LARGEST_FILE}")
    if code > LARGEST_CODE:
        raise JobFileError(f"the job's {CUSTOM} folders have {code} bytes; they have at most {LARGEST_CODE}")
