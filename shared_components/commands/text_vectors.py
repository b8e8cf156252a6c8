"""`surgfl text-vectors`: compute the vectors of texts, and keep them in a file; or list what a file holds."""

import argparse
from pathlib import Path

from shared_components.common.counted import counted
from shared_components.core.text.site_text import KINDS, READERS, known_texts
from shared_components.core.text.vectors import SHIPPED, TextError, Vectors, add_vectors, read_vectors

HELP = "compute vectors of site texts, or list the texts of a file"


def configure(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("texts", nargs="*", metavar="TEXT", help="site text; without it, list the file")
    add("--known", action="store_true", help="compute the vectors of all shipped texts")
    add("--file", type=Path, metavar="FILE", help="safetensors file to extend or list; default: the shipped file")
    add("--encoder", choices=READERS, default="sentence", help="text encoder; default: sentence")
    add("--folder", type=Path, metavar="DIR", help="encoder folder in Hugging Face format; required for clip")


def run(args: argparse.Namespace) -> int:
    """Compute the vectors and write them, or list a file's; after a ValueError nothing was written."""
    texts = [*args.texts, *(known_texts() if args.known else ())]
    if not texts:
        _list(args.file or SHIPPED, read_vectors(args.file or SHIPPED))
        return 0
    if args.file is None:
        raise TextError("name the file that gets the vectors, such as --file my-vectors.safetensors")
    if args.encoder == "clip" and args.folder is None:
        raise TextError("--encoder clip needs --folder, the folder of a CLIP on this disk; nothing is downloaded")
    encoder = KINDS[args.encoder].open(args.folder)
    vectors = add_vectors(args.file, [encoder.encode(text) for text in texts])
    print(_headline(args.file, vectors))
    return 0


def _headline(path: Path, vectors: Vectors) -> str:
    count, width = vectors.values.shape
    made = f"{vectors.kind}: {vectors.model}, SHA-256 {vectors.sha256[:8]}"
    return f"{path}: {counted(count, 'vector')} of {counted(width, 'number')} ({made})"


def _list(path: Path, vectors: Vectors) -> None:
    print(_headline(path, vectors), *vectors.texts, sep="\n")
