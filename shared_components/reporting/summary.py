"""Summarise a run in sentences and a few numbers: scores first, then costs and missing updates."""

import math
from collections.abc import Sequence
from functools import partial

from shared_components.common.counted import counted, first_few
from shared_components.core.card import DASH, Metric, fixed
from shared_components.reporting.costs import bytes_by_round, rejections, round_bytes, round_seconds, server_seconds
from shared_components.reporting.many_sites import MOST, NAMED
from shared_components.reporting.records import EARLY, Group, Run, curves, mean, round_number, score, worst_site

_NAMED = 6  # maximum sites in a sentence; more sites are given as a range


def state(run: Run) -> tuple[str, str]:
    """Return the status (complete, unfinished, stopped or failed) and a sentence on the aggregated rounds."""
    done = len(run.aggregations)
    reached = f"{done} of {counted(run.rounds, 'round')} {'was' if run.rounds == 1 else 'were'} aggregated"
    for key, how in EARLY.items():
        if run.info.get(key):
            return how, f"This run {'was ' * (how == 'stopped')}{how} after {reached}: {run.info[key]}"
    final = [site for site in run.sites if run.rounds in run.rows[site] or site in run.finals]
    if final and done >= run.rounds:
        return "complete", f"{reached[0].upper()}{reached[1:]}."
    return "unfinished", f"This run is not finished: {reached}. It is still running, or it was interrupted."


def sentences(run: Run, groups: Sequence[Group] | None = None) -> list[str]:
    """Return the summary, the most important sentence first; several tasks have one item each.

    Validation scores are included for `groups`, by default for all groups.
    """
    texts = []
    for group in run.groups if groups is None else groups:
        scores = on_validation(run, group)
        texts += scores if len(run.groups) == 1 else [" ".join([f"{group.title}.", *scores])]
    texts += [_sampling(run), _cost(run), *_absences(run)]
    if refused := len(rejections(run)):
        count = "1 update was" if refused == 1 else f"{refused} updates were"
        texts.append(f"{count} rejected or missing; see the list below.")
    return [text for text in texts if text]


def on_validation(run: Run, group: Group) -> list[str]:
    """Return sentences on the change of a task's validation scores and on the worst site."""
    return [text for text in (_gain(run, group), _worst(run, group)) if text]


def score_tiles(run: Run, group: Group) -> list[tuple[str, str]]:
    """Return the main scores of a task as (label, value)."""
    metric = group.first
    last = [score(run.last_metrics(site), metric.name) for site in group.sites]
    if len(last) == 1:
        return [(f"{metric.label}, validation", metric.with_unit(last[0]))]
    values = {f"mean {metric.label}, validation": mean(last), f"worst site's {metric.label}": metric.worst(last)}
    return [(label, metric.with_unit(value)) for label, value in values.items()]


def tiles(run: Run) -> list[tuple[str, str]]:
    """Return the main costs of a run as (label, value)."""
    moved = sum(sum(c.values()) for d in ("up", "down") for c in bytes_by_round(run, d).values())
    return [
        ("rounds", f"{len(run.aggregations)} of {run.rounds}"),
        ("sent in both directions", amount(moved) if moved else DASH),
        ("s per round and site", fixed(round_seconds(run), 1)),
        ("missing updates", str(len(rejections(run)))),
    ]


def amount(count: float) -> str:
    """Return a number of bytes with a suitable decimal unit."""
    unit, size = next(((u, s) for u, s in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)) if count >= s), ("bytes", 1))
    return f"{count / size:,.{0 if size == 1 else 1}f} {unit}"


def _gain(run: Run, group: Group) -> str:
    metric = group.first
    gains = {
        site: (curve.get(run.first_round(site), math.nan), score(run.last_metrics(site), metric.name))
        for site, curve in curves(run, group.sites, metric.name).items()
    }
    known = {site: pair for site, pair in gains.items() if not any(map(math.isnan, pair))}
    if not known and run.info.get("privacy"):
        return f"Each round's {metric.label} stays at the sites, because differential privacy does not cover it."
    if not known:
        return f"No site has reported a first and a last {metric.label} yet."
    improved = [site for site, (first, last) in known.items() if metric.better(last, first)]
    opening = _opening(metric, len(improved), len(known), len(group.sites))
    number, united = (partial(write, rounder=1) for write in (metric.plain_text, metric.with_unit))
    if len(known) <= _NAMED:
        changes = (f"{site} {number(first)} → {united(last)}" for site, (first, last) in known.items())
        return f"{opening}: {', '.join(changes)}."
    ends = [f"{number(min(values))}–{united(max(values))}" for values in zip(*known.values(), strict=True)]
    ranges = f"from {ends[0]} to {ends[1]}"
    others = [site for site in known if site not in improved]
    return f"{opening}: {ranges}" + (f"; not at {first_few(others)}." if others else ".")


def _opening(metric: Metric, improved: int, known: int, sites: int) -> str:
    """Return the start of the sentence on improvement; the verb follows the metric's direction."""
    verb, base, hint = ("rose", "rise", "") if metric.higher_is_better else ("fell", "fall", " (lower is better)")
    if known == sites == 1:
        return f"The site's {metric.label} " + (f"{verb}{hint}" if improved else f"did not {base}")
    if improved == known == sites:
        return f"Every site's {metric.label} {verb}{hint}"
    return f"{metric.label} {verb}{hint} at {improved} of {counted(sites, 'site')}"


def _worst(run: Run, group: Group) -> str:
    metric = group.first
    scores = {site: score(run.last_metrics(site), metric.name) for site in group.sites}
    known = {site: value for site, value in scores.items() if not math.isnan(value)}
    if len(known) < 2:
        return ""
    site, worst = worst_site(known, metric)
    average = metric.with_unit(mean(list(known.values())))
    worst_score = f"{metric.label} {metric.with_unit(worst)}"
    return f"The worst site is {site} with {worst_score}; the mean over the sites is {average}."


def _sampling(run: Run) -> str:
    if not run.draws:
        return ""
    counts = [len(run.sampled(r)) for r in run.aggregations]
    few, many = min(counts), max(counts)
    drawn = str(few) if few == many else f"{few} to {many}"
    return f"Every round used a random sample of {drawn} of the {counted(len(run.sites), 'site')}."


def _cost(run: Run) -> str:
    up, down = (round_bytes(run, direction) for direction in ("up", "down"))
    seconds = round_seconds(run)
    if math.isnan(up) or math.isnan(seconds):
        return ""
    text = f"On average, a site sends {amount(up)}, receives {amount(down)} and works {seconds:.1f} s per round."
    waited = [averaging + training for _, averaging, training in server_seconds(run).values()]
    return f"{text} Then the sites wait {mean(waited):.1f} s while the server trains." if waited else text


def _absences(run: Run) -> list[str]:
    texts, absent = [], {site: rounds for site in run.sites if (rounds := run.absent(site))}
    every = sorted(absent, key=lambda site: -len(absent[site])) if len(absent) > MOST else list(absent)
    named = every[:NAMED] if len(absent) > MOST else every
    for site in named:
        rounds = [round_number(r) for r in absent[site]]
        if len(rounds) > 8:
            texts.append(f"{site} is missing from {len(rounds)} rounds between {rounds[0]} and {rounds[-1]}.")
        else:
            numbers = ", ".join(map(str, rounds))
            texts.append(f"{site} is missing from {'round' if len(rounds) == 1 else 'rounds'} {numbers}.")
    if more := len(every) - len(named):
        texts.append(
            f"{counted(more, 'more site')} missed rounds, each {counted(len(absent[every[NAMED]]), 'round')} or fewer."
        )
    return texts
