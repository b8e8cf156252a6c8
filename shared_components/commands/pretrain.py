"""`surgfl pretrain`: weights for a bundle, trained only on rendered scenes."""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from shared_components.commands import add_repeatable
from shared_components.common.counted import counted

if TYPE_CHECKING:
    from shared_components.weights.pretraining.plan import Settings

HELP = "pre-train a bundle's network on rendered scenes, without any hospital's data"

_SIZES = ("96x128:6000", "192x256:3000")


def configure(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("bundle", help="bundle whose network is trained")
    add("--out", type=Path, required=True, help="output folder; continues if it contains a state")
    add("--task", default="segmentation", help="kind of task; default: %(default)s")
    add("--start", default="random", help="initial weights: random, rendered (shipped) or a path; default: %(default)s")
    add("--size", action="append", metavar="HxW:STEPS", help=f"size and steps, repeatable; default {', '.join(_SIZES)}")
    add("--seed", type=int, default=2022, help="random seed; default: %(default)s")
    add("--batch-size", type=int, default=8, help="batch size; default: %(default)s")
    add("--frames", type=int, default=10, help="samples per video, each in another batch; default: %(default)s")
    add("--clip", type=int, default=2, help="longest clip, for networks that follow objects; default: %(default)s")
    add("--objects", type=int, default=3, help="maximum number of objects in such a clip; default: %(default)s")
    add("--learning-rate", type=float, default=1e-3, help="maximum learning rate; default: %(default)s")
    add("--colour", type=float, default=0.6, help="strength of colour augmentation, 0 to 1; default: %(default)s")
    add_repeatable(parser, "--number", "NAME=VALUE", "setting of the task's loss, such as balance=0.5")
    looks = "looks to cycle through; surgery-*, microscope-*, flexible-* and random-* (default) draw one per video"
    add("--looks", default="", metavar="A,B,...", help=looks)
    add("--precision", choices=("float32", "bf16"), help="precision; default: bf16 if the hardware supports it")
    add("--threads", type=int, help="CPU threads of the training process; default: all cores")
    add("--workers", type=int, help="rendering processes; default: 0, with a GPU up to 16")
    add("--save-every", type=int, default=500, metavar="N", help="steps between saved states; default: %(default)s")
    add("--check-every", type=int, default=1000, metavar="N", help="steps between validations; default: %(default)s")


def run(args: argparse.Namespace) -> int:
    """Train until the last step; 130 if interrupted. After a ValueError nothing was overwritten."""
    import cv2
    import torch

    from shared_components.common import machine
    from shared_components.weights.pretraining.train import Pretraining

    for name, least in (("threads", 1), ("save_every", 1), ("check_every", 1), ("workers", 0)):
        value = getattr(args, name)
        if value is not None and value < least:
            raise ValueError(f"--{name.replace('_', '-')} is {value}; give a whole number, at least {least}")
    if args.threads:
        torch.set_num_threads(args.threads)
        cv2.setNumThreads(args.threads)
    # rendering keeps up with a processor's training, but not with a GPU's
    spare = min(16, max(1, machine.cores() - 1)) if machine.device().type == "cuda" else 0
    training = Pretraining(
        settings(args), args.out, start=args.start, command=shlex.join(["surgfl", *sys.argv[1:]]),
        save_every=args.save_every, check_every=args.check_every,
        workers=spare if args.workers is None else args.workers, say=sys.stdout,
    )  # fmt: skip
    if not training.run():
        print(f"stopped after step {training.done}; the same command goes on from there (state in {args.out})")
        return 130
    print(f"{args.out / 'model.safetensors'}: the averaged weights of {counted(training.done, 'step')}")
    return 0


def settings(args: argparse.Namespace) -> Settings:
    """Return the settings that determine the weights."""
    from shared_components.common import machine
    from shared_components.core.initial_weights import parse_start, source_of
    from shared_components.weights.pretraining.plan import Settings, read_sizes

    kind, file = parse_start(args.start)
    source = source_of(kind, args.bundle, file)
    return Settings(
        bundle=args.bundle, task=args.task, phases=read_sizes(args.size or _SIZES), seed=args.seed,
        batch=args.batch_size, frames=args.frames, clip=args.clip, objects=args.objects,
        learning_rate=args.learning_rate, colour=args.colour, precision=args.precision or machine.fast_precision(),
        start=kind if source is None else f"{source[0].name} {source[1][:16]}",  # a file may change under its name
        numbers=tuple(_number(text) for text in args.number),
        looks=tuple(look for look in args.looks.split(",") if look),
    )  # fmt: skip


def _number(text: str) -> tuple[str, float]:
    name, _, value = text.partition("=")
    try:
        return name, int(value) if value.strip().isdigit() else float(value)
    except ValueError:
        raise ValueError(f"--number is {text!r}; give a name and a value such as balance=0.5") from None
