"""Replace a function of FLARE, or end the process.

The replacements protect a hospital or a running job. FLARE swallows exceptions of its event handlers, and Python
assigns to any name, so a renamed or changed function of FLARE would leave a process unprotected. The process therefore
ends, by `os._exit`, if the replacement was written for another version of FLARE or another source of the function.
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

VERSION = "2.9.0"  # the only supported version of FLARE; setup.cfg and the lock file pin it
REPLACES = "surgfl_replaces"  # attribute of a replacement: FLARE's own function

logger = logging.getLogger(__name__)


def replace(owner: Any, name: str, function: Callable[..., Any], *, sha256: str) -> None:
    """Replace a function in one of FLARE's modules or classes; a second call changes nothing.

    The process ends if FLARE's version is not supported, or if the function is missing or has another source than
    ``sha256``, see `source_hash`. ``function`` takes FLARE's own function, followed by its arguments. Static and class
    methods are replaced by a static method.
    """
    if hasattr(getattr(owner, name, None), REPLACES):
        return
    own = expect(owner, name, sha256=sha256)

    @functools.wraps(own)
    def replacement(*arguments: Any, **options: Any) -> Any:
        return function(own, *arguments, **options)

    setattr(replacement, REPLACES, own)
    static = isinstance(inspect.getattr_static(owner, name), staticmethod | classmethod)
    setattr(owner, name, staticmethod(replacement) if static else replacement)


def expect(owner: Any, name: str, *, sha256: str) -> Any:
    """Return a function of FLARE that we replace or override; end the process if its source has changed."""
    path = f"{getattr(owner, '__module__', '')}.{owner.__name__}.{name}".lstrip(".")
    if nvflare.__version__ != VERSION:
        end_process(f"nvflare is {nvflare.__version__}, and SurgFL replaces functions of {VERSION}")
    if (own := getattr(owner, name, None)) is None:
        end_process(f"nvflare has no {path}, which SurgFL replaces")
    if source_hash(own) != sha256 or not sha256:
        end_process(f"the source of {path} is not the source in nvflare {VERSION}, which SurgFL replaces")
    return own


def source_hash(function: Any) -> str:
    """Return the SHA-256 of a function's source without indentation and trailing spaces; empty if it has no source."""
    code = getattr(function, "__code__", None)  # a wrapper's own code, not the code of `__wrapped__`
    if not isinstance(code, CodeType) or not (file := linecache.getlines(code.co_filename)):
        return ""
    source = "".join(inspect.getblock(file[code.co_firstlineno - 1 :]))  # `getsource` would search all modules first
    lines = textwrap.dedent(source).rstrip().splitlines()
    return hashlib.sha256("\n".join(line.rstrip() for line in lines).encode()).hexdigest()


def end_process(why: str, remedy: str = f"install nvflare=={VERSION}") -> NoReturn:
    """Write the reason to the log and to standard error, and end the process, even inside FLARE's event handlers."""
    sentence = f"{why}; this process ends, because it would run unprotected: {remedy}"
    if handlers := logging.getLogger().handlers:  # without handlers, logging itself writes to standard error
        logger.critical("%s", sentence)
    for handler in handlers:
        handler.flush()
    print(sentence, file=sys.stderr, flush=True)
    os._exit(1)
