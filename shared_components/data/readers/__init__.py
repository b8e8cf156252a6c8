"""One reader per public dataset, found by listing this folder.

A file contains one `Reader`: the dataset's layout on disk, its ids or colours, and its crop. Readers know nothing of
sites or splits. A new dataset is one new file here.
"""

import importlib
import pkgutil
from functools import cache

from shared_components.data.files.reader import Listing, Reader, Targets, paired

__all__ = ["Listing", "Reader", "Targets", "find_reader", "paired", "reader_names"]


def reader_names() -> list[str]:
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


@cache
def find_reader(dataset: str) -> Reader:
    """Return the reader of a dataset; KeyError for an unknown name."""
    if dataset not in reader_names():
        raise KeyError(f"no reader for dataset {dataset!r}; there are {', '.join(reader_names())}")
    module = importlib.import_module(f"{__name__}.{dataset}")
    classes = [member for member in vars(module).values() if isinstance(member, type) and issubclass(member, Reader)]
    (reader,) = (member for member in classes if member.__module__ == module.__name__)
    return reader()
