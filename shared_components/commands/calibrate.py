"""`surgfl calibrate BUNDLE`: calibrate the probabilities of a bundle's weights and its warning about unlike video."""

import argparse
import shlex

from shared_components.commands import add_repeatable, named_sites
from shared_components.common.progress_display import show_progress
from shared_components.reporting.tables import Table, as_text

HELP = "calibrate a bundle's weights: probabilities, and the warning about unlike video"


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("bundle", help="bundle with shipped weights; bundles that share them get the same card")
    add_repeatable(parser, "--real", "NAME=site.yaml", "real site for the false-alarm rate, and its name in the card")


def run(args: argparse.Namespace) -> int:
    """Write the calibration beside the weights, and the cards of the bundles; after a ValueError nothing changes."""
    from shared_components.core import calibration
    from shared_components.core.shipped_weights import shipped_weights
    from shared_components.weights.bundle_files.make import check_with_sharing, write_with_sharing
    from shared_components.weights.shipping.calibrating import calibrate
    from shared_components.weights.shipping.weights import real_sites

    weights = shipped_weights(args.bundle)
    files = named_sites(args.real)
    check_with_sharing([weights.parents[1].name])
    real = real_sites(files)
    with show_progress():
        sites = [f"--real={name}={file.name}" for name, file in files.items()]
        command = shlex.join(["surgfl", "calibrate", args.bundle, *sites])
        result = calibrate(weights, bundle=args.bundle, real=real, command=command)
    path = weights.with_name(calibration.FILE)
    calibration.write_calibration(path, result)
    for changed in (path, *write_with_sharing([weights.parents[1].name])):
        print(f"{changed}: written")
    card = result.facts.card
    head, rows = calibration.certainty_head(card), tuple(calibration.certainty_rows(card))
    print("", as_text(Table("Videos that give the warning", head, rows, labels=1)), sep="\n")
    title = f"Error of the probabilities, before and after the temperature {result.facts.temperature:.2f}"
    errors = tuple(calibration.error_rows(card))
    print(as_text(Table(title, ("Frames of", "Frames", "Before", "After"), errors, labels=1)))
    return 0
