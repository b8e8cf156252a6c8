"""Train your own network with a federated method, without writing any other code.

    surgfl render --out scenes --sites 2 --frames 8 --videos 2,1,1
    python examples/own_network.py scenes

A network is any torch.nn.Module that maps RGB frames (B, 3, H, W) in [0, 1] to logits (B, classes, H, W).
"""

import argparse
import os

from torch import Tensor, nn

import surgfl


class Shallow(nn.Module):
    """Three convolutions and a last layer.

    Args:
        out_channels: Number of classes. SurgFL passes it, because it depends on the sites' labels.
        width: Number of feature channels.
    """

    stride = 2  # height and width of the input must be multiples of this

    def __init__(self, *, out_channels: int, width: int = 16) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Conv2d(3, width, 3, stride=2, padding=1), nn.BatchNorm2d(width), nn.ReLU())
        self.decoder = nn.Sequential(nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU())
        self.last = nn.Sequential(nn.Conv2d(width, out_channels, 1), nn.Upsample(scale_factor=2, mode="bilinear"))

    def forward(self, image: Tensor) -> Tensor:
        return self.last(self.decoder(self.encoder(image)))


def main() -> None:
    parser = argparse.ArgumentParser(description="Train your own network with FedBN.")
    parser.add_argument("sites", help="folder with <site>/site.yaml")
    parser.add_argument("--steps", type=int, default=50, help="steps per round")
    parser.add_argument("--out", default="own-network")
    args = parser.parse_args()

    os.environ["SURGFL_NETWORKS"] = "own_network.Shallow"  # the only class that a job may build in this process
    run = surgfl.simulate(
        "fedbn",
        args.sites,
        args.out,
        network={"class": "own_network.Shallow"},
        training={"height": 96, "width": 128, "iterations": args.steps, "start": "random"},
    )
    for name, scores in run.scores.items():
        print(f"{name}: validation Dice {scores['dice']['mean']:.3f}, model {run.models[name]}")


if __name__ == "__main__":
    main()
