"""Write a federated method and simulate it: LG-FedAvg (Liang et al., arXiv 2001.01523).

    surgfl render --out scenes --sites 2 --frames 8 --videos 2,1,1
    python examples/own_method.py scenes

A method is a partition (which weights stay at a site), a local objective and an aggregator. To deploy this method, move
`build` into a file of its own in shared_components/methods/, see docs/how-to/add-a-method.md.
"""

import argparse
from pathlib import Path

import surgfl
from shared_components import methods
from shared_components.core.aggregators.mean import WeightedMean
from shared_components.core.method import About, Method, Server
from shared_components.core.partition_rules import modules
from shared_components.core.ranges import SomeNames


def build(*, personal: SomeNames = ("encoder",)) -> Method:
    """Return LG-FedAvg: each site keeps the parts in ``personal``, and the server averages all other weights."""
    return Method(
        partition=modules(personal, what="own_method: personal"),
        server=Server(aggregator=WeightedMean(), weighted_sum_only=True),
        about=About(
            label="LG-FedAvg",
            paper="Liang et al., arXiv 2001.01523",
            idea="Each hospital has its own encoder. All hospitals share the layers above it.",
            partition="encoder LOCAL, the rest GLOBAL",
            objective="the task's loss",
            aggregator="mean weighted by samples",
            secure_sums="yes: the server only needs the weighted sum",
        ),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Simulate LG-FedAvg.")
    parser.add_argument("sites", help="folder with <site>/site.yaml")
    parser.add_argument("--steps", type=int, default=50, help="steps per round")
    parser.add_argument("--out", default="own-method")
    args = parser.parse_args()

    methods.__path__.append(str(Path(__file__).parent))  # SurgFL finds a method by its file's name
    run = surgfl.simulate(
        "fedavg",
        args.sites,
        args.out,
        method="own_method",
        training={"height": 96, "width": 128, "iterations": args.steps},
    )
    for name, scores in run.scores.items():
        print(f"{name}: validation Dice {scores['dice']['mean']:.3f}, model {run.models[name]}")


if __name__ == "__main__":
    main()
