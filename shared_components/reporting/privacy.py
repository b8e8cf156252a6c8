"""The privacy of a noisy run: the promise of its noise, and what each site has spent of it."""

from __future__ import annotations

from typing import Any

from shared_components.core.card import DASH
from shared_components.reporting.records import Run, read_json, site_folder
from shared_components.reporting.tables import Table

RECORD = "privacy.json"
_HEAD = ("site", "unit", "clip", "noise", "delta", "epsilon", "updates sent", "of them clipped", "epsilon of all jobs")
_NOTE = (
    "The noise's standard deviation is noise x clip on every number of an update. Epsilon and delta are for two data "
    "sets of a site that may differ in everything; an epsilon of a few says that what was sent tells little of them, "
    "one of hundreds promises next to nothing. What a site itself has counted is in its own folder, and a dash where "
    "that is elsewhere: how many updates were clipped depends on the data, so that no site sends it"
)


def privacy_table(run: Run) -> Table | None:
    """Tabulate the privacy of a run by site; None where it has no noise."""
    said = run.info.get("privacy")
    if not said:
        return None
    rows = tuple(_row(run, site, said) for site in run.sites)
    return Table("Privacy by site", _HEAD, rows, note=_NOTE, labels=2)


def _row(run: Run, site: str, said: dict[str, Any]) -> tuple[str, ...]:
    path = site_folder(run.folder, site) / RECORD
    own = read_json(path) if path.is_file() else {}
    last = run.aggregations.get(max(run.aggregations, default=0), {})
    sent, clipped = own.get("updates"), own.get("clipped")
    share = f"{100 * clipped / sent:.0f} %" if sent and clipped is not None else DASH
    return (
        site,
        str(said.get("unit", DASH)),
        *(_number(said.get(key)) for key in ("clip", "noise_multiplier", "delta")),
        _number(own.get("epsilon", last.get("epsilon"))),
        str(sent) if sent is not None else DASH,
        share,
        _number(own.get("epsilon_of_all_jobs")),
    )


def _number(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, int | float) else DASH
