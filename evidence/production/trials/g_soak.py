"""Many rounds: memory, threads, open files and disk use do not grow."""

from collections.abc import Mapping

from safetensors.torch import load_file

from evidence.production.at_start import FORGET, REST
from evidence.production.deployment import Deployment
from evidence.production.footprint import Footprint, told_by_jobs, watch
from evidence.production.results import SHORTEST, personal_model, rejected
from evidence.production.trials import Deploy, trial
from shared_components.flare.memory import LARGE

FIVE = tuple(f"hospital-{letter}" for letter in "abcde")
AMONG = 5  # rounds over which the lowest number of threads and files counts
SPARE = 2  # threads or files in use for a short time
THREADS = 0.5  # growth per round; FLARE's pools grow up to their size, and a leak of one per round is found
EVEN = {
    "NVFLARE_STREAMING_RETRY_TIMEOUT": "5",
    "NVFLARE_STREAMING_RETRY_WAIT": "1",
    "MALLOC_MMAP_THRESHOLD_": str(LARGE),
    FORGET: "5",
    REST: "7",
}
"""FLARE keeps a thread for 65 s after each received stream, in case the sender asks again. The number of threads then
depends on the speed of rounds. With 6 s, and a step of 7 s, all threads end once per round. With 1.5 s, streams broke
on a busy machine. FLARE remembers the route of ended streams for 300 s: more than 0.1 MB per round at a server with
five sites (tracemalloc). Rounds of seconds do not reach the end of this time; rounds of minutes do.

The C library's limit for large blocks, which our server sets and a site does not, removes the effect of fragmentation
on the sites' memory. Without it the slopes of five sites' processes were between -0.2 and +0.9 MB per round.
"""


@trial("30 rounds of PFedSIS, 27 MB, five sites")
def soak(deploy: Deploy) -> str:
    """Growth per round is less than 1 % of the model from the tenth round, in every process and on every disk."""
    return soaked(deploy(*FIVE, variables=EVEN), rounds=30, since=10, share=0.01)


@trial("8 rounds of PFedSIS, three sites")
def short_soak(deploy: Deploy) -> str:
    """A short version: caches still fill, so the limit is higher; a buffer that each stream leaves is found."""
    return soaked(deploy(variables=EVEN), rounds=8, since=4, share=0.1)


def soaked(deployment: Deployment, *, rounds: int, since: int, share: float) -> str:
    """Run rounds of FedAvg and measure; return the result.

    Args:
        deployment: Deployment that is not started.
        rounds: Number of rounds.
        since: First round that counts, after caches are full.
        share: Allowed growth per round, as a share of the model's bytes.
    """
    deployment.start()
    job = deployment.submit(
        deployment.job("fedavg", name="soak", rounds=rounds, bundle="pfedsis", training=SHORTEST, grace_seconds=60)
    )
    seen = watch(deployment, "soak", rounds=rounds, job=job, seconds=60 * rounds)
    assert deployment.wait(job) == "FINISHED:COMPLETED", deployment.server.log[-2000:]
    assert not any(rejected(deployment, "soak")), "a site was left out, so that its rounds are missing"
    seen = seen.with_jobs(told_by_jobs(deployment))
    model = sum(value.nbytes for value in load_file(personal_model(deployment, "soak", "hospital-a")).values())
    print(account(seen, rounds, since))
    limit = share * model
    for what in ("rss", "uss"):
        grown = {name: value for name, value in seen.slopes(what, since=since).items() if value >= limit}
        assert not grown, f"{what} grows by more than {limit / 1e6:.2f} MB a round: {megabytes(grown)}"
    grown = {name: value for name, value in seen.disk_slopes(since=since).items() if value >= limit}
    assert not grown, f"the disk grows by more than {limit / 1e6:.2f} MB a round: {megabytes(grown)}"
    begin, end = windows(rounds, since)
    for what, spare in (("threads", SPARE + THREADS * (end[0] - begin[0])), ("files", SPARE)):
        first, last = seen.least(what, begin), seen.least(what, end)
        more = {name: f"{first[name]} -> {last[name]}" for name in last if last[name] > first[name] + spare}
        assert not more, f"{what} grow from round {since} to {rounds}: {more}"
    return figure(seen, rounds, since, model)


def figure(seen: Footprint, rounds: int, since: int, model: int) -> str:
    """Return the worst growth of each kind, in one line."""
    slopes = seen.slopes("uss", since=since)
    server, site = (worst(slopes, kind) for kind in ("server job", "hospital"))
    begin, end = windows(rounds, since)
    threads, files = (
        f"{sum(seen.least(what, begin).values())} -> {sum(seen.least(what, end).values())}"
        for what in ("threads", "files")
    )
    disk = max(seen.disk_slopes(since=since).values())
    return (
        f"a round adds {server / 1e6:+.2f} MB to the server's job ({server / model:.1%} of the model), at most "
        f"{site / 1e6:+.2f} MB ({site / model:.1%}) to a process of a site, {disk / 1e3:.1f} kB to a disk; all "
        f"threads {threads}, open files {files}; {seen.seconds / (rounds - 1):.1f} s a round"
    )


def windows(rounds: int, since: int) -> tuple[range, range]:
    """Return the first and last rounds that count."""
    among = min(AMONG, (rounds - since + 1) // 2)
    return range(since, since + among), range(rounds + 1 - among, rounds + 1)


def worst(slopes: Mapping[str, float], kind: str) -> float:
    """Return the largest slope of the processes with this name prefix."""
    return max(value for name, value in slopes.items() if name.startswith(kind))


def account(seen: Footprint, rounds: int, since: int) -> str:
    """Return a line for every process."""
    rss, uss = (seen.slopes(what, since=since) for what in ("rss", "uss"))
    lines = []
    for name, held in seen.held.items():
        first, last = held[since], held[rounds]
        lines.append(
            f"{name:20} rss {first.rss / 1e6:6.0f} -> {last.rss / 1e6:6.0f} MB, {rss[name] / 1e6:+6.2f} a round; uss "
            f"{uss[name] / 1e6:+6.2f} a round; threads {first.threads} -> {last.threads}; files {first.files} -> "
            f"{last.files}"
        )
    return "\n".join(lines)


def megabytes(values: Mapping[str, float]) -> str:
    """Return values with their names."""
    return ", ".join(f"{name} {value / 1e6:+.2f} MB" for name, value in values.items())
