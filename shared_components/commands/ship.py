"""`surgfl ship`: score weights of a pre-training where they have not trained, and put them into bundles."""

import argparse
import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from shared_components.commands import named_values
from shared_components.common import machine
from shared_components.common.arguments import one_of
from shared_components.core.shipped_weights import (
    FACTS,
    MODEL,
    control_head,
    control_rows,
    score_head,
    score_rows,
    sha256_of,
    shipped_facts,
)
from shared_components.core.task import Task
from shared_components.networks import bundle_config
from shared_components.networks.checkpoints import CheckpointError, save_weights
from shared_components.reporting.tables import Table, as_text
from shared_components.scenes.drawn_looks import FAMILIES
from shared_components.scenes.looks import LOOKS
from shared_components.weights.bundle_files.make import (
    check_with_sharing,
    described_bundles,
    read_description,
    write_with_sharing,
)
from shared_components.weights.shipping.weights import (
    HEAVIEST,
    Films,
    Tested,
    card_of,
    card_text,
    halved,
    looks_to_test,
    network_with,
    read_stages,
    real_sites,
    rendered_sites,
    score,
    with_data,
    write_together,
)

HELP = "put weights of `surgfl pretrain` or of a job into bundles, with scores and a card"


def configure(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "pretrained",
        type=Path,
        metavar="RUN",
        help="folder of a pre-training or of a finished job, such as ws-state/fl_endovit/latest",
    )
    add(
        "--data",
        default="",
        metavar="WORDS",
        help="training data of a job's sites, such as 'nine rendered sites'; required for a job",
    )
    add(
        "--seen",
        action="append",
        type=Path,
        default=[],
        metavar="site.yaml",
        help="site whose training videos the weights have seen; tests on them are refused; repeatable",
    )
    add("--bundle", action="append", required=True, metavar="NAME", help="bundle to write; repeatable")
    add(
        "--before",
        action="append",
        type=Path,
        default=[],
        metavar="RUN",
        help="pre-training before RUN; repeat it for earlier ones",
    )
    add(
        "--real",
        action="append",
        default=[],
        metavar="NAME=site.yaml",
        help="real site to score on, and its name in the card; repeatable",
    )
    add("--looks", default=",".join(LOOKS), metavar="A,B,...", help="looks to score on; default: all named looks")
    add("--unseen", type=int, default=8, metavar="N", help="unseen looks of each family to score on; default: 8")
    add(
        "--families",
        default=",".join(FAMILIES),
        metavar="A,B,...",
        help="families of unseen looks; default: %(default)s",
    )
    add("--choice", type=Path, metavar="FILE", help="choice.json of `surgfl weights`, for the card")
    add("--videos", type=int, default=2, help="rendered videos per look; default: 2")
    add("--frames", type=int, default=6, help="frames per rendered video; default: 6")


def run(args: argparse.Namespace) -> int:
    """Score and ship; all bundles get the same file, or after a ValueError none of them changes."""
    _refuse_sharing(args.bundle)
    trained, *before = read_stages([args.pretrained, *args.before])
    trained = with_data(trained, args.data, args.seen)
    real = real_sites(named(args.real))
    with tempfile.TemporaryDirectory() as folder:
        half = Path(folder) / "model.safetensors"
        save_weights(half, halved(trained.weights), trained.notes)
        _refuse_heavy(half)
        network, *_ = [network_with(half, name, trained.task().channels) for name in args.bundle]
        network.to(machine.device())
        check_with_sharing(args.bundle)
        scores: list[dict[str, Any]] = []
        for tested in _tested(args, trained.task(), Path(folder) / "sites", real):
            scores += score(network, trained, tested)
            print(f"scored: {tested.name}", flush=True)
        shipped = shipped_facts(args.bundle[0])
        facts = card_of(trained, sha256=sha256_of(half), scores=scores, before=before, shipped_before=shipped)
        if args.choice:
            facts["choice"] = json.loads(args.choice.read_text(encoding="utf-8"))
        _write(args.bundle, half.read_bytes(), facts)
    print("", *map(as_text, _tables(facts)), sep="\n")
    if trained.notes["task"] == "segmentation" and trained.task().prompting is None:
        print(
            *(f"next: surgfl calibrate {name}, which lets them say when they do not know" for name in args.bundle),
            sep="\n",
        )
    return 0


def _tested(args: argparse.Namespace, task: Task, folder: Path, real: Sequence[Tested]) -> Iterator[Tested]:
    named, families = ([one for one in text.split(",") if one] for text in (args.looks, args.families))
    for family in families:
        one_of("ship", "--families", family, FAMILIES)
    looks = looks_to_test(args.unseen, named, families)
    films = Films(args.videos, args.frames)
    yield from rendered_sites(looks, folder, kind=task.card.kind, spec=task.spec, films=films)
    yield from real


def named(texts: Sequence[str]) -> dict[str, Path]:
    """Read the sites of `--real`, by name; ValueError for one without a name, or of another's."""
    given = named_values("--real", texts, "a name and a site, such as 'EndoVis 2015=/data/site.yaml'", empty=False)
    return {name: Path(path).expanduser() for name, path in given.items()}


def _refuse_sharing(bundles: Sequence[str]) -> None:
    for name in {*bundles} & {*described_bundles()}:
        if other := read_description(name).same_weights_as:
            raise ValueError(
                f"--bundle {name}: {name}.yaml says same_weights_as: {other}; ship them with --bundle {other} "
                "alone, or remove the key"
            )


def _refuse_heavy(path: Path) -> None:
    if (size := path.stat().st_size) > HEAVIEST:
        raise CheckpointError(
            f"the weights take {size / 1e6:.1f} MB in half precision, and a bundle ships at most {HEAVIEST / 1e6:.0f}; "
            "use a smaller network"
        )


def _write(bundles: Sequence[str], weights: bytes, facts: Mapping[str, Any]) -> None:
    """Write weights and cards of all bundles together, then what their descriptions make of the cards.

    So of bundles that share them.
    """
    root = bundle_config.bundles_folder()
    files = {root / name / MODEL: weights for name in bundles}
    write_together(files | {root / name / FACTS: card_text(facts).encode() for name in bundles})
    made = write_with_sharing(bundles, root)
    for path in [*files, *(root / name / FACTS for name in bundles), *made]:
        print(f"{path}: {'written' if path.exists() else 'removed'}")


def _tables(facts: Mapping[str, Any]) -> Iterator[Table]:
    title = f"Without any training there, in half precision, SHA-256 {facts['sha256'][:8]}"
    yield Table(title, score_head(facts), tuple(score_rows(facts)), labels=2)
    if rows := control_rows(facts):
        yield Table("The same beside controls", control_head(facts), tuple(rows), labels=2)
