"""Read from a federated job's run what `pretraining.json` records of a pre-training."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from shared_components.federation.messages import Job
from shared_components.federation.runs.run_folder import DESCRIPTION
from shared_components.federation.runs.store import RECORDS
from shared_components.networks.checkpoints import CheckpointError

SERVER = "server"  # the folder of its model
_OF_JOB = ("method", "arguments", "training", "tasks", "network", "rounds", "synthetic")


def is_job_run(run: Path) -> bool:
    """Return whether a folder is of a federated job's run: it has a run.json."""
    return (run / DESCRIPTION).is_file()


def facts_of_job(run: Path) -> dict[str, Any]:
    """Return how a finished run's model was made: `weights.FACTS`, the job's settings, and what it began from.

    Steps, frames and seconds are those of all sites and rounds.

    Raises:
        CheckpointError: The run has not finished, or its files cannot be read.
    """
    try:
        described = json.loads((run / DESCRIPTION).read_text(encoding="utf-8"))
        lines = (run / SERVER / RECORDS).read_text(encoding="utf-8").splitlines()
        return _facts(described, [json.loads(line) for line in lines], run)
    except (OSError, ValueError, LookupError, TypeError) as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(
            f"{run}: the records of this run cannot be read ({error!r}); name the folder of a finished run, such as "
            "ws-state/fl_endovit/latest"
        ) from error


def _facts(described: dict[str, Any], records: list[dict[str, Any]], run: Path) -> dict[str, Any]:
    if not any(record["kind"] == "outsider" for record in records):
        raise CheckpointError(f"{run}: this run has not finished; resume it, or name another")
    job = Job.from_json(described["job"])
    training = job.open_bundle().training
    trained = [record for record in records if record["kind"] == "site" and record.get("loss")]
    rounds = [training.for_samples(record["samples"]) for record in trained]  # of each site
    steps = sum(one.steps for one in rounds)
    start = described["start"]
    return {
        "bundle": job.bundle,
        "command": f"nvflare simulator nvflare_jobs/{job.name} -w ws -n {len(described['sites'])}",
        **{key: described[key] for key in ("commit", "seed", "hardware")},
        "threads": None,
        "seconds": sum(record.get("seconds_wall", 0.0) for record in records if record["kind"] == "aggregation"),
        "steps": steps,
        "frames": sum(one.iterations * one.batch_size for one in rounds),
        "sizes": [f"{training.height}x{training.width}:{steps}"],
        "settings": {"start": start["start"]},
        "job": {key: described["job"][key] for key in _OF_JOB if described["job"][key]},
        "sites": len(described["sites"]),
        "start": start,
    }
