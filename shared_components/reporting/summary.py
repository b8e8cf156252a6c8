"""Say in plain words what a run did: first for whoever looks at the pictures, then for whoever runs it."""

import math

from shared_components.reporting.costs import bytes_by_round, rejections, seconds_by_round
from shared_components.reporting.mixing import verdicts
from shared_components.reporting.records import NAN, Curve, Run, curves, lowest, mean, score
from shared_components.reporting.tables import DASH, number

_NAMED = 6  # with more sites than this a sentence gives the range instead of every site


def state(run: Run) -> tuple[str, str]:
    """Tell whether the run is "complete", "unfinished" or "failed", and in a sentence how far it came."""
    done = len(run.aggregations)
    reached = f"{done} of {run.rounds} rounds were aggregated"
    if run.info.get("error"):
        return "failed", f"This run failed after {reached}: {run.info['error']}"
    final = [site for site in run.sites if run.rounds in run.rows[site] or site in run.finals]
    if final and done >= run.rounds:
        return "complete", f"{reached[0].upper()}{reached[1:]}."
    return "unfinished", f"This run is not finished: {reached}. It is still going, or it was stopped."


def sentences(run: Run) -> list[str]:
    """Give the summary, the most important sentence first."""
    gains = {
        site: (_first(curve), score(run.last_metrics(site), "dice"))
        for site, curve in curves(run, "dice").items()
    }
    known = {site: pair for site, pair in gains.items() if not any(map(math.isnan, pair))}
    said = [
        _gain(known, len(run.sites)),
        _worst(run),
        _test(run),
        *verdicts(run),
        _cost(run),
        *_absences(run),
    ]
    refused = rejections(run)
    said.append(
        f"{_count(len(refused), 'update was', 'updates were')} refused or did not come; see the list below."
        if refused
        else ""
    )
    return [sentence for sentence in said if sentence]


def tiles(run: Run) -> list[tuple[str, str]]:
    """Give the few numbers that stand at the top, as label and value."""
    last = [score(run.last_metrics(site), "dice") for site in run.sites]
    moved = sum(sum(c.values()) for d in ("up", "down") for c in bytes_by_round(run, d).values())
    seconds = _round_seconds(run)
    return [
        ("mean Dice, validation", number(mean(last), 3)),
        ("worst site's Dice", number(lowest(last), 3)),
        ("rounds", f"{len(run.aggregations)} of {run.rounds}"),
        ("sent, both ways", amount(moved) if moved else DASH),
        ("s a round and site", number(seconds, 1)),
        ("updates missing", str(len(rejections(run)))),
    ]


def amount(count: float) -> str:
    """Write bytes in the decimal unit that suits them."""
    unit, size = next(
        ((u, s) for u, s in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)) if count >= s), ("bytes", 1)
    )
    return f"{count / size:,.{0 if size == 1 else 1}f} {unit}"


def _first(curve: Curve) -> float:
    return curve.get(0, NAN)


def _gain(known: dict[str, tuple[float, float]], sites: int) -> str:
    if not known:
        return "No site has reported a first and a last Dice yet."
    rose = [site for site, (first, last) in known.items() if last > first]
    if len(known) == sites == 1:
        opening = "The site's Dice rose" if rose else "The site's Dice did not rise"
    elif len(rose) == len(known) == sites:
        opening = "Every site's Dice rose"
    else:
        opening = f"Dice rose at {len(rose)} of {sites} sites"
    if len(known) <= _NAMED:
        return f"{opening}: " + ", ".join(f"{s} {a:.2f} → {b:.2f}" for s, (a, b) in known.items()) + "."
    firsts, lasts = zip(*known.values(), strict=True)
    ranges = f"from {min(firsts):.2f}–{max(firsts):.2f} to {min(lasts):.2f}–{max(lasts):.2f}"
    fell = [site for site in known if site not in rose]
    return f"{opening}: {ranges}" + (f"; not at {', '.join(fell)}." if fell else ".")


def _worst(run: Run) -> str:
    last = {site: score(run.last_metrics(site), "dice") for site in run.sites}
    known = {site: value for site, value in last.items() if not math.isnan(value)}
    if len(known) < 2:
        return ""
    site = min(known, key=lambda name: known[name])
    average = mean(list(known.values()))
    return f"The worst site is {site} with Dice {known[site]:.3f}; the mean over the sites is {average:.3f}."


def _test(run: Run) -> str:
    tested = {site: score(metrics, "dice") for site, metrics in run.evaluations.items()}
    known = {site: value for site, value in tested.items() if not math.isnan(value)}
    if not known:
        return ""
    site = min(known, key=lambda name: known[name])
    average = f"mean Dice {mean(list(known.values())):.3f} over {_count(len(known), 'site', 'sites')}"
    return f"On the frames held out for testing: {average}, lowest {known[site]:.3f} at {site}."


def _cost(run: Run) -> str:
    up, down = (_per_site(run, direction) for direction in ("up", "down"))
    seconds = _round_seconds(run)
    if math.isnan(up) or math.isnan(seconds):
        return ""
    return (
        f"In a round a site sends {amount(up)}, receives {amount(down)} and takes {seconds:.1f} s on average."
    )


def _per_site(run: Run, direction: str) -> float:
    """Average the bytes of the rounds that were trained; the last delivery is none."""
    rows = [
        row for site in run.sites for row in run.rows[site].values() if row.get("loss") and row.get("bytes")
    ]
    return mean([float(sum(row["bytes"].get(direction, {}).values())) for row in rows])


def _round_seconds(run: Run) -> float:
    return mean([sum(column.values()) for r, column in seconds_by_round(run).items() if r < run.rounds])


def _absences(run: Run) -> list[str]:
    missed = {site: run.absent(site) for site in run.sites}
    return [f"{site} is missing from {_rounds(absent)}." for site, absent in missed.items() if absent]


def _rounds(numbers: list[int]) -> str:
    if len(numbers) > 8:
        return f"{len(numbers)} rounds between {numbers[0]} and {numbers[-1]}"
    return ("round " if len(numbers) == 1 else "rounds ") + ", ".join(map(str, numbers))


def _count(number_of: int, one: str, many: str) -> str:
    return f"{number_of} {one if number_of == 1 else many}"
