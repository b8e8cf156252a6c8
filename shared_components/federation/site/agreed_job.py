"""Keep the job that a site enrolled with, which no later message of the server changes.

Were a site to follow the job of each message, a server could ask for one method's LOCAL pieces as the GLOBAL ones of
another, in the run in which the site has trained them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from shared_components.common.atomic import write_json
from shared_components.federation.message_schema import check_place
from shared_components.federation.messages import Job, SiteRefusal, folder_name
from shared_components.federation.runs import MAY_CHANGE, changed_settings
from shared_components.federation.store import rounds_in

ENROLLED = "enrolled.json"
PLACE = ("number", "numbers")  # the site's number, and of how many: its random numbers follow from them


def site_folder(root: Path, job: str, run: str, site: str) -> Path:
    """Return a site's own folder of a run; ValueError where the run's name cannot be a folder's."""
    return root / folder_name("job name", job) / folder_name("run", run) / site


def agreed_job(task: str, header: Mapping[str, Any], root: Path, *, site: str) -> Job:
    """Return the job that an answer to a message follows: the one of the site's enrolment in this run.

    What a resumed run may have otherwise, such as the number of rounds, is the message's. The first enrolment alone may
    come with a job that is new. Of the message's header ``job``, ``run`` and `PLACE` are
    read; ``root`` is the folder of all runs.

    Raises:
        SiteRefusal: The site has not enrolled in the run, or with other settings than the message has; the sentence
            names the first of them.
        ValueError: The message's job is none, or its round or the site's number is no number of its range.
    """
    job = Job.from_json(header["job"])
    check_place(header)
    folder = site_folder(root, job.name, header["run"], site)
    if not (folder / ENROLLED).is_file():
        if task == "enrol" and not rounds_in(folder):
            return job
        raise SiteRefusal(
            f"site {site}: {folder} holds no {ENROLLED}, the job that the site enrolled with; put it back, or start a "
            "new run"
        )
    before, place = _read(folder / ENROLLED, site)
    changed = [*changed_settings(before.to_json(), job), *(key for key in PLACE if header[key] != place[key])]
    if changed:
        raise SiteRefusal(
            f"site {site}: the server's {task} message has another {changed[0]} than the site enrolled with "
            f"({folder / ENROLLED}); a run keeps its job, so put it back, or start a new run"
        )
    return replace(before, **{key: getattr(job, key) for key in MAY_CHANGE})


def keep_agreed(header: Mapping[str, Any], root: Path, *, site: str) -> None:
    """Write the job of an enrolment into the site's folder of the run, unless one is there."""
    job = Job.from_json(header["job"])
    path = site_folder(root, job.name, header["run"], site) / ENROLLED
    if not path.is_file():
        write_json(path, {"job": job.to_json(), **{key: header[key] for key in PLACE}})


def _read(path: Path, site: str) -> tuple[Job, dict[str, Any]]:
    """Return the job of an enrolment, and the site's place in it."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        return Job.from_json(values["job"]), {key: values[key] for key in PLACE}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SiteRefusal(f"site {site}: {path} cannot be read ({error}); put it back, or start a new run") from error
