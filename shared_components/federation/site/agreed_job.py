"""The site's run folder, and the job that the site enrolled with, which no later message of the server changes.

If a site followed the job of each message, a server could ask for one method's LOCAL pieces as another method's GLOBAL
pieces, in the run in which the site trained them.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shared_components.common.atomic import write_json
from shared_components.federation.messages import Job, Request, SiteRefusal, folder_name
from shared_components.federation.privacy.gaussian import Randomness
from shared_components.federation.runs.run_folder import ENROLLED, MAY_CHANGE, changed_settings
from shared_components.federation.runs.store import rounds_in
from shared_components.federation.secure_sums.identity import Identity

PLACE = ("number", "numbers")  # the site's number and the number of sites: its random numbers depend on both


@dataclass(frozen=True)
class Sender:
    """A site in a run, as its uploads need it."""

    name: str
    run: str
    folder: Path  # the site's folder of the run
    identity: Identity | None  # startup kit that vouches for the site's key of secure sums
    random: Randomness  # source of the noise


def site_folder(root: Path, job: str, run: str, site: str) -> Path:
    """Return a site's folder of a run; ValueError if the run's name is not valid for a folder."""
    return root / folder_name("job name", job) / folder_name("run", run) / site


def agreed_job(request: Request, root: Path, *, site: str) -> Job:
    """Return the job of the site's enrolment in this run, with the settings of the request that a resume may change.

    Only the first enrolment may come with a new job. ``root`` is the folder of all runs. SiteRefusal: the site has not
    enrolled in the run, or with other settings; the message names the first.
    """
    job, folder = request.job, site_folder(root, request.job.name, request.run, site)
    path, remedy = folder / ENROLLED, "put it back, or start a new run"
    if not path.is_file():
        if request.task == "enrol" and not rounds_in(folder):
            return job
        raise SiteRefusal(f"site {site}: {folder} has no {ENROLLED}, the job that the site enrolled with; {remedy}")
    try:
        values: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        agreed = Job.from_json({**values["job"], **{key: getattr(job, key) for key in MAY_CHANGE}})
        moved = [key for key in PLACE if getattr(request.place, key) != values[key]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SiteRefusal(f"site {site}: {path} cannot be read ({error}); {remedy}") from error
    if changed := [*changed_settings(agreed.to_json(), job), *moved]:
        raise SiteRefusal(
            f"site {site}: the server's {request.task} message has another {changed[0]} than the site enrolled with "
            f"({path}); a run keeps its job, so {remedy}"
        )
    return agreed


def keep_agreed(request: Request, root: Path, *, site: str) -> None:
    """Write the job of an enrolment into the site's folder of the run, unless one is there."""
    path = site_folder(root, request.job.name, request.run, site) / ENROLLED
    if not path.is_file():
        write_json(path, {"job": request.job.to_json(), **{key: getattr(request.place, key) for key in PLACE}})
