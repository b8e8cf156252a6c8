"""Replace a function of FLARE by one of ours, or end the process.

What we replace protects a hospital or a running job. FLARE swallows what its event handlers raise, and Python assigns
to any name: a function that FLARE has renamed or changed would leave a process running unprotected. So the process
ends, by `os._exit`, where the installed FLARE is not the version, or the function not the source, that the replacement
was written for.
"""

import functools
import hashlib
import inspect
import linecache
import logging
import os
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType
from typing import Any, NoReturn

import nvflare

VERSION = "2.9.0"
"""The only version of FLARE that the replacements fit; setup.cfg and the lock file pin it."""
REPLACES = "surgfl_replaces"  # attribute of a replacement: the function of FLARE's

logger = logging.getLogger(__name__)


def replace(owner: Any, name: str, make: Callable[[Any], Callable[..., Any]], *, sha256: str) -> None:
    """Replace a function of one of FLARE's modules or classes; a second call changes nothing.

    The process ends where FLARE has another version, no such function, or one with another source.

    Args:
        owner: The module or the class.
        name: The function's name there; the replacement of a static method or a class method is a static method.
        make: Returns the replacement, given FLARE's own function, whose name and documentation it takes.
        sha256: Hash of the source of FLARE's own function, see `source_hash`.
    """
    if hasattr(getattr(owner, name, None), REPLACES):
        return
    own = expect(owner, name, sha256=sha256)
    replacement = functools.wraps(own)(make(own))
    setattr(replacement, REPLACES, own)
    static = isinstance(inspect.getattr_static(owner, name), staticmethod | classmethod)
    setattr(owner, name, staticmethod(replacement) if static else replacement)


def expect(owner: Any, name: str, *, sha256: str) -> Any:
    """Return a function of FLARE's that we replace or override; end the process if its source has changed."""
    words = f"{getattr(owner, '__module__', '')}.{owner.__name__}.{name}".lstrip(".")
    if nvflare.__version__ != VERSION:
        end_process(f"nvflare is {nvflare.__version__}, and SurgFL replaces functions of {VERSION}")
    if (own := getattr(owner, name, None)) is None:
        end_process(f"nvflare has no {words}, which SurgFL replaces")
    if source_hash(own) != sha256 or not sha256:
        end_process(f"the source of {words} is not that of nvflare {VERSION}, which SurgFL replaces")
    return own


def source_hash(function: Any) -> str:
    """Return the SHA-256 of a function's source without indentation and trailing spaces; empty if it has none."""
    code = getattr(function, "__code__", None)  # a wrapper's own, not that of `__wrapped__`
    if not isinstance(code, CodeType) or not (file := linecache.getlines(code.co_filename)):
        return ""
    source = "".join(inspect.getblock(file[code.co_firstlineno - 1 :]))  # `getsource` would look at all modules first
    lines = textwrap.dedent(source).rstrip().splitlines()
    return hashlib.sha256("\n".join(line.rstrip() for line in lines).encode()).hexdigest()


@contextmanager
def or_end(what: str) -> Iterator[None]:
    """End the process if the block raises, also inside FLARE's event handlers, which swallow exceptions."""
    try:
        yield
    except Exception as error:
        end_process(f"{what} cannot be put in place ({type(error).__name__}: {error})")


def end_process(why: str, remedy: str = f"install nvflare=={VERSION}") -> NoReturn:
    """Write the reason to the log and to standard error, and end the process, whoever has called."""
    sentence = f"{why}; this process ends, for it would run unprotected: {remedy}"
    if handlers := logging.getLogger().handlers:  # without any, logging writes to standard error, too
        logger.critical("%s", sentence)
    for handler in handlers:
        handler.flush()
    print(sentence, file=sys.stderr, flush=True)
    os._exit(1)
