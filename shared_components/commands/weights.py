"""`surgfl weights`: make shipped weights from random weights by a recipe."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from shared_components.commands import Parser, pretrain, ship

HELP = "train, choose and ship weights of bundles by a recipe; repeat the command to resume"


def configure(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("recipe", help="name of a recipe, such as pvt_fpn, or a path")
    add("--out", type=Path, required=True, help="output folder")
    real = "YAML of names and site.yaml of real sites that choose the weights ('choose:') or are only scored ('card:')"
    add("--real", type=Path, metavar="FILE", help=real)
    add("--threads", type=int, help="CPU threads; default: all cores")
    add("--workers", type=int, help="rendering processes; default: as `surgfl pretrain`")
    add("--no-ship", action="store_true", help="stop after the choice and do not change bundles")


def run(args: argparse.Namespace) -> int:
    """Train the missing stages, choose weights and ship them; 130 if interrupted."""
    from shared_components.weights.shipping.recipe import CHOICE, choose, line_of, read_real, read_recipe, words_of

    recipe, real = read_recipe(args.recipe), read_real(args.real)
    machine = [f"--{name}={value}" for name in ("threads", "workers") if (value := getattr(args, name)) is not None]
    stages = [_parsed(pretrain, [*words_of(recipe, name, args.out), *machine]) for name in recipe.stages]
    for stage in stages:  # refuse a wrong value before hours of training
        pretrain.settings(argparse.Namespace(**{**vars(stage), "start": "random"}))
    for stage in stages:
        if code := pretrain.run(stage):
            return code
    best = choose(recipe, args.out, {name: Path(file) for name, file in real.choose.items()})
    print(f"{args.out / CHOICE}: {best} is the best of {', '.join(recipe.candidates)}")
    if args.no_ship:
        return 0
    run_folder, *before = (str(args.out / name) for name in line_of(recipe, best))
    words = [run_folder, "--choice", str(args.out / CHOICE), *(f"--before={stage}" for stage in before)]
    words += [f"--bundle={name}" for name in recipe.bundles]
    words += [f"--real={name}={file}" for sites in (real.choose, real.card) for name, file in sites.items()]
    return ship.run(_parsed(ship, words))


def _parsed(command: ModuleType, words: Sequence[str]) -> argparse.Namespace:
    parser = Parser()
    command.configure(parser)
    try:
        args, unknown = parser.parse_known_args(words)
    except ValueError as error:
        raise ValueError(f"the recipe's options {' '.join(words)} are wrong: {error}") from error
    if unknown:
        name = command.__name__.rpartition(".")[2]
        raise ValueError(f"the recipe has an option that `surgfl {name}` lacks: {unknown[0]}")
    return args
