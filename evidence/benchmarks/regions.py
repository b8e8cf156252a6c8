"""Compare the server's cost of a round with and without regions' nodes, which check and sum updates in its place.

python -m evidence.benchmarks.regions --sites 64,256,1000

Sites are simulated: their updates, of a million parameters, are generated here. FLARE and training are not included.
All processor seconds of a line are from one process; the weights of both ways are compared bit by bit.
"""

import argparse
import json
import math
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch

from evidence.benchmarks.server_memory import opened
from shared_components.federation.messages import Message, Reply
from shared_components.federation.protocol import Answers, Ask
from shared_components.federation.regions import answer_order, answers_of_region, messages_by_region, sites_by_region
from shared_components.federation.runs.provenance import commit, hardware
from shared_components.federation.server.runner import ServerRunner

T = TypeVar("T")


class Clock:
    """Processor seconds by name."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def time(self, name: str, work: Callable[..., T], *arguments: Any) -> T:
        began = time.process_time()
        done = work(*arguments)
        self.seconds[name] = self.seconds.get(name, 0.0) + time.process_time() - began
        return done


def updates_of(messages: Mapping[str, Message]) -> dict[str, Reply]:
    """Return the updates of simulated sites, which differ by the site's number."""
    replies = {}
    for site, message in messages.items():
        number = int(site.rpartition("-")[2])
        header = {"round": 0, "samples": 9 + number, "loss": {}, "metrics": {}}
        replies[site] = Reply(header, {name: value + 1e-5 * number for name, value in message.pieces.items()})
    return replies


def flat_round(server: ServerRunner, clock: Clock) -> None:
    """Run a round in which the server keeps, checks and sums every update."""
    replies = {}
    for site, message in clock.time("flat", server.round_messages).items():
        for name, reply in updates_of({site: message}).items():
            replies[name] = clock.time("flat", server.inbox.keep, name, reply)
    clock.time("flat", server.finish_round, replies, {})


def relayed_round(server: ServerRunner, clock: Clock) -> int:
    """Run a round with nodes; return the characters of the headers of all messages between server and nodes."""
    messages = clock.time("server", server.round_messages)
    orders = clock.time("server", messages_by_region, Ask("round", messages, len(messages)), server)
    replies, characters = {}, 0

    def exchange(ask: Ask, request: Any, judge: Callable[[str, Reply], bool]) -> Answers:
        return Answers(clock.time("sites", updates_of, ask.messages))

    for region, order in orders.items():
        answer = clock.time("node", answer_order, "round", order, exchange)
        asked = sites_by_region(server.job, messages)[region]
        replies |= clock.time("server", answers_of_region, server, "round", region, answer, asked).replies
        characters += len(json.dumps(order.header)) + len(json.dumps(answer.header))
    clock.time("server", server.finish_round, replies, {})
    return characters


def compare(sites: int, folder: Path) -> str:
    """Return a row: sites, regions, processor seconds, their ratio, and characters of headers per site."""
    count = math.isqrt(sites)
    names = [f"site-{number + 1}" for number in range(sites)]
    regions = {f"region-{number + 1}": names[number::count] for number in range(count)}
    clock, servers = Clock(), []
    for name in ("flat", "relayed"):
        torch.manual_seed(0)
        servers.append(opened("fedavg", {}, 1, 1, folder / name, sites=sites, regions=regions))
    flat, relayed = servers
    flat_round(flat, clock)
    characters = relayed_round(relayed, clock)
    one, other = flat.state.models.shared, relayed.state.models.shared
    assert all(torch.equal(one[name], other[name]) for name in one), "the weights differ"
    seconds = clock.seconds
    node = (seconds["node"] - seconds["sites"]) / count
    ratio = seconds["flat"] / seconds["server"]
    return (
        f"{sites:5} {count:7} {seconds['flat']:9.2f} {seconds['server']:11.2f} {ratio:6.1f} {node:8.2f}"
        f" {characters / sites:10.0f}"
    )


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sites", default="64,256")
    args = parser.parse_args(arguments)
    torch.set_num_threads(1)
    print(f"commit {commit()}, {hardware()}, one thread, processor seconds of a round")
    print("sites regions flat server with nodes  ratio one node characters of headers per site")
    for sites in map(int, args.sites.split(",")):
        with tempfile.TemporaryDirectory() as folder:
            print(compare(sites, Path(folder)), flush=True)


if __name__ == "__main__":
    main()
