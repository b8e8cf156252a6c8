"""Keep the job that a site enrolled with, which no later message of the server changes.

Were a site to follow the job of each message, a server could ask for one method's LOCAL pieces as the GLOBAL ones of
another, in the run in which the site has trained them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from shared_components.common.atomic import write_json
from shared_components.federation.messages import Job, Request, SiteRefusal, folder_name
from shared_components.federation.runs.run_folder import ENROLLED, MAY_CHANGE, changed_settings
from shared_components.federation.runs.store import rounds_in

PLACE = ("number", "numbers")  # the site's number, and of how many: its random numbers follow from them


def site_folder(root: Path, job: str, run: str, site: str) -> Path:
    """Return a site's own folder of a run; ValueError where the run's name cannot be a folder's."""
    return root / folder_name("job name", job) / folder_name("run", run) / site


def agreed_job(request: Request, root: Path, *, site: str) -> Job:
    """Return the job that an answer to a request follows: the job of the site's enrolment in this run.

    What a resumed run may have otherwise, such as the number of rounds, is the request's. Only the first enrolment may
    come with a job that is new. ``root`` is the folder of all runs.

    Raises:
        SiteRefusal: The site has not enrolled in the run, or with other settings than the request has; the sentence
            names the first of them.
    """
    job, folder = request.job, site_folder(root, request.job.name, request.run, site)
    if not (folder / ENROLLED).is_file():
        if request.task == "enrol" and not rounds_in(folder):
            return job
        raise SiteRefusal(
            f"site {site}: {folder} holds no {ENROLLED}, the job that the site enrolled with; put it back, or start a "
            "new run"
        )
    agreed, place = _read(folder / ENROLLED, job, site)
    changed = changed_settings(agreed.to_json(), job)
    changed += [key for key in PLACE if getattr(request.place, key) != place[key]]
    if changed:
        raise SiteRefusal(
            f"site {site}: the server's {request.task} message has another {changed[0]} than the site enrolled with "
            f"({folder / ENROLLED}); a run keeps its job, so put it back, or start a new run"
        )
    return agreed


def keep_agreed(request: Request, root: Path, *, site: str) -> None:
    """Write the job of an enrolment into the site's folder of the run, unless one is there."""
    path = site_folder(root, request.job.name, request.run, site) / ENROLLED
    if not path.is_file():
        write_json(path, {"job": request.job.to_json(), **{key: getattr(request.place, key) for key in PLACE}})


def _read(path: Path, job: Job, site: str) -> tuple[Job, dict[str, Any]]:
    """Return the job of an enrolment, with the settings of ``job`` that may change, and the site's place in it."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        agreed = Job.from_json({**values["job"], **{key: getattr(job, key) for key in MAY_CHANGE}})
        return agreed, {key: values[key] for key in PLACE}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SiteRefusal(f"site {site}: {path} cannot be read ({error}); put it back, or start a new run") from error
