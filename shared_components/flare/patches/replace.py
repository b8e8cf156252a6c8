"""Replace a function of FLARE, or end the process.

The replacements protect a hospital or a running job. FLARE swallows exceptions of its event handlers, and Python
assigns to any name, so a renamed or changed function of FLARE would leave a process unprotected. The process therefore
ends, by `os._exit`, if `versions` does not list FLARE's version, or lists another source of the function.
"""

import functools
import hashlib
import inspect
import linecache
import logging
import os
import sys
import textwrap
from collections.abc import Callable
from types import CodeType
from typing import Any, NoReturn

import nvflare

from shared_components.flare.patches.versions import SUPPORTED, expected_source

REPLACES = "surgfl_replaces"  # attribute of a replacement: FLARE's own function
REMEDY = f"install nvflare=={SUPPORTED[0]}, or follow docs/how-to/upgrade-flare.md"

logger = logging.getLogger(__name__)


def replace(owner: Any, name: str, function: Callable[..., Any]) -> None:
    """Replace a function in one of FLARE's modules or classes; a second call changes nothing.

    The process ends if FLARE's version is not supported, or if the function is missing or has another source than in
    `versions`. ``function`` takes FLARE's own function, followed by its arguments. Static and class methods become
    static methods.
    """
    if hasattr(getattr(owner, name, None), REPLACES):
        return
    own = expect(owner, name)

    @functools.wraps(own)
    def replacement(*arguments: Any, **options: Any) -> Any:
        return function(own, *arguments, **options)

    setattr(replacement, REPLACES, own)
    static = isinstance(inspect.getattr_static(owner, name), staticmethod | classmethod)
    setattr(owner, name, staticmethod(replacement) if static else replacement)


def expect(owner: Any, name: str) -> Any:
    """Return a function of FLARE that a protection depends on; end the process if its source has changed."""
    path, version = f"{getattr(owner, '__module__', '')}.{owner.__name__}.{name}".lstrip("."), nvflare.__version__
    if version not in SUPPORTED:
        end_process(f"nvflare is {version}, and SurgFL supports {' and '.join(SUPPORTED)}")
    if (own := getattr(owner, name, None)) is None:
        end_process(f"nvflare has no {path}, which a protection of SurgFL needs")
    if not (sha256 := expected_source(path, version)) or source_hash(own) != sha256:
        end_process(f"the source of {path} is not the source in nvflare {version}, which SurgFL was written for")
    return own


def source_hash(function: Any) -> str:
    """Return the SHA-256 of a function's source without indentation and trailing spaces; empty if it has no source."""
    code = getattr(function, "__code__", None)  # a wrapper's own code, not the code of `__wrapped__`
    if not isinstance(code, CodeType) or not (file := linecache.getlines(code.co_filename)):
        return ""
    return hash_text(
        "".join(inspect.getblock(file[code.co_firstlineno - 1 :]))
    )  # `getsource` searches all modules first


def hash_text(source: str) -> str:
    """Return the SHA-256 of a source without indentation and trailing spaces."""
    lines = textwrap.dedent(source).rstrip().splitlines()
    return hashlib.sha256("\n".join(line.rstrip() for line in lines).encode()).hexdigest()


def end_process(why: str, remedy: str = REMEDY) -> NoReturn:
    """Write the reason to the log and to standard error, and end the process, even inside FLARE's event handlers."""
    sentence = f"{why}; this process ends, because it would run unprotected: {remedy}"
    if handlers := logging.getLogger().handlers:  # without handlers, logging itself writes to standard error
        logger.critical("%s", sentence)
    for handler in handlers:
        handler.flush()
    print(sentence, file=sys.stderr, flush=True)
    os._exit(1)
