"""Do the work of `surgfl text-vectors`."""

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

from shared_components.common.counted import counted
from shared_components.core.method import SiteFacts
from shared_components.core.text.site_text import DATASETS, KINDS, LETTERS, SURGERIES, site_text, task_text
from shared_components.core.text.vectors import SHIPPED, TextError, Vectors, add_vectors, read_vectors
from shared_components.data.files.classes import CLASS_MAPS
from shared_components.data.readers import find_reader, reader_names
from shared_components.scenes.layouts import LAYOUTS
from shared_components.scenes.looks import LOOKS, look_named


def run(args: argparse.Namespace) -> int:
    """Compute and write vectors, or list the texts of a file; after a ValueError nothing was written."""
    texts = [*args.texts, *(known_texts() if args.known else ())]
    if not texts:
        path = args.file or SHIPPED
        vectors = read_vectors(path)
        print(_headline(path, vectors), *vectors.texts, sep="\n")
        return 0
    if args.file is None:
        raise TextError("name the file that gets the vectors, such as --file my-vectors.safetensors")
    if args.encoder == "clip" and args.folder is None:
        raise TextError("--encoder clip needs --folder, the folder of a CLIP on this disk; nothing is downloaded")
    encoder = KINDS[args.encoder].open(args.folder)
    vectors = add_vectors(args.file, list(map(encoder.encode, texts)))
    print(_headline(args.file, vectors))
    return 0


def known_texts() -> tuple[str, ...]:
    """Return the texts whose vectors the project ships: surgeries, looks, and FedST's and SurgFed's sentences."""
    looks = [f"synthetic: {look_named(name).text}" for name in (*LOOKS, "random-0")]
    plain = [*SURGERIES, *looks]
    five_sites = [site_text(surgery, letter) for surgery in SURGERIES for letter in LETTERS]
    return (*plain, *map(site_text, plain), *five_sites, *_known_tasks(looks))


def _known_tasks(looks: Sequence[str]) -> Iterator[str]:
    """Yield SurgFed's sentence for the labels of each public data set, and for sites rendered in its layout."""
    for name, (_, surgery) in DATASETS.items():
        if name in reader_names():
            reader = find_reader(name)
            task = "" if "label" in reader.TARGETS else "depth"
            rendered = any(name == (style.dataset or layout) for layout, style in LAYOUTS.items())
            for class_map in dict.fromkeys([reader.USUAL or reader.CLASS_MAP, reader.CLASS_MAP]):
                classes = CLASS_MAPS.get(class_map, ())
                for text in (surgery, *(looks if rendered else ())):
                    yield task_text(SiteFacts(text, dataset=name, task=task, classes=classes))


def _headline(path: Path, vectors: Vectors) -> str:
    count, width = vectors.values.shape
    encoder = f"{vectors.kind}: {vectors.model}, SHA-256 {vectors.sha256[:8]}"
    return f"{path}: {counted(count, 'vector')} of {counted(width, 'number')} ({encoder})"
