"""Do the work of `surgfl ship`."""

import argparse
import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from shared_components.commands import named_sites
from shared_components.common import machine
from shared_components.common.arguments import one_of
from shared_components.core import shipped_weights
from shared_components.core.task import Task
from shared_components.networks import bundle_config
from shared_components.networks.checkpoints import CheckpointError, save_weights
from shared_components.reporting.tables import Table, as_text
from shared_components.scenes.drawn_looks import FAMILIES
from shared_components.weights.bundle_files import make
from shared_components.weights.shipping import weights as shipping


def run(args: argparse.Namespace) -> int:
    """Score and ship; all bundles get the same file. After a ValueError no bundle has changed."""
    for name in {*args.bundle} & {*make.described_bundles()}:
        if other := make.read_description(name).same_weights_as:
            what = f"--bundle {name}: {name}.yaml has same_weights_as: {other}"
            raise ValueError(f"{what}; ship only --bundle {other}, or remove the key")
    trained, *before = shipping.read_stages([args.pretrained, *args.before])
    trained = shipping.with_data(trained, args.data, args.seen)
    real = shipping.real_sites(named_sites(args.real))
    with tempfile.TemporaryDirectory() as folder:
        half = Path(folder) / "model.safetensors"
        save_weights(half, shipping.halved(trained.weights), trained.notes)
        if (size := half.stat().st_size) > shipping.HEAVIEST:
            what = f"{size / 1e6:.1f} MB in half precision, and a bundle ships at most {shipping.HEAVIEST / 1e6:.0f}"
            raise CheckpointError(f"the weights take {what}; use a smaller network")
        network, *_ = [shipping.network_with(half, name, trained.task().channels) for name in args.bundle]
        network.to(machine.device())
        make.check_with_sharing(args.bundle)
        scores: list[dict[str, Any]] = []
        for test in _tests(args, trained.task(), Path(folder) / "sites", real):
            scores += shipping.score(network, trained, test)
            print(f"scored: {test.name}", flush=True)
        shipped = shipped_weights.shipped_facts(args.bundle[0])
        facts = shipping.card_of(
            trained, sha256=shipped_weights.sha256_of(half), scores=scores, before=before, shipped_before=shipped
        )
        if args.choice:
            facts["choice"] = json.loads(args.choice.read_text(encoding="utf-8"))
        _write(args.bundle, half.read_bytes(), facts)
    print("", *map(as_text, _tables(facts)), sep="\n")
    if trained.notes["task"] == "segmentation" and trained.task().prompting is None:
        for name in args.bundle:
            print(f"next: surgfl calibrate {name}, which adds the warning about unlike video")
    return 0


def _tests(
    args: argparse.Namespace, task: Task, folder: Path, real: Sequence[shipping.Tested]
) -> Iterator[shipping.Tested]:
    looks, families = ([name for name in text.split(",") if name] for text in (args.looks, args.families))
    for family in families:
        one_of("ship", "--families", family, FAMILIES)
    films = shipping.Films(args.videos, args.frames)
    tested = shipping.looks_to_test(args.unseen, looks, families)
    yield from shipping.rendered_sites(tested, folder, kind=task.card.kind, spec=task.spec, films=films)
    yield from real


def _write(bundles: Sequence[str], weights: bytes, facts: Mapping[str, Any]) -> None:
    root = bundle_config.bundles_folder()
    files = {root / name / shipped_weights.MODEL: weights for name in bundles}
    files |= {root / name / shipped_weights.FACTS: shipping.card_text(facts).encode() for name in bundles}
    shipping.write_together(files)
    for path in [*files, *make.write_with_sharing(bundles, root)]:
        print(f"{path}: {'written' if path.exists() else 'removed'}")


def _tables(facts: Mapping[str, Any]) -> Iterator[Table]:
    title = f"Without any training there, in half precision, SHA-256 {facts['sha256'][:8]}"
    yield Table(title, shipped_weights.score_head(facts), tuple(shipped_weights.score_rows(facts)), labels=2)
    if rows := shipped_weights.control_rows(facts):
        yield Table("Compared with controls", shipped_weights.control_head(facts), tuple(rows), labels=2)
