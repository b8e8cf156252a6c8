"""`surgfl text-vectors`: compute the vectors of texts and save them in a file, or list the texts of a file."""

import argparse
from pathlib import Path

from shared_components.core.text import READERS

HELP = "compute vectors of site texts, or list the texts of a file"


def configure(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("texts", nargs="*", metavar="TEXT", help="site text; without it, list the file")
    add("--known", action="store_true", help="compute the vectors of all shipped texts")
    add("--file", type=Path, metavar="FILE", help="safetensors file to extend or list; default: the shipped file")
    add("--encoder", choices=READERS, default="sentence", help="text encoder; default: sentence")
    add("--folder", type=Path, metavar="DIR", help="encoder folder in Hugging Face format; required for clip")


def run(args: argparse.Namespace) -> int:
    """Compute and write vectors, or list the texts of a file; after a ValueError nothing was written."""
    from shared_components.commands import _text_vectors

    return _text_vectors.run(args)
