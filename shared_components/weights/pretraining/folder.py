"""Read and write the folder of a pre-training: results, log and state.

RUN/model.safetensors     averaged weights, with the notes of all checkpoints
RUN/pretraining.json      settings, hardware and scores
RUN/log.jsonl             losses and scores by step
RUN/state.safetensors     state for a resume
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor

from shared_components.common.atomic import try_lock, write_json, write_text
from shared_components.federation.runs.store import DamagedState, load_tensors, save_tensors
from shared_components.networks.checkpoints import save_weights
from shared_components.weights.pretraining.plan import Settings

MODEL, FACTS, LOG, STATE = "model.safetensors", "pretraining.json", "log.jsonl", "state.safetensors"
LOCK = ".lock"


class RunFolder:
    """Files of a pre-training with these settings; the folder is created when the training starts."""

    def __init__(self, path: Path, settings: Settings) -> None:
        self.path, self.settings = path, settings

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the folder; raise ValueError if another process has locked it or it contains other files."""
        foreign = self.path.exists() and any(not path.name.startswith(".") for path in self.path.iterdir())
        if foreign and not (self.path / STATE).is_file():
            raise ValueError(f"{self.path} contains files but no {STATE}; set --out to a new or empty folder")
        self.path.mkdir(parents=True, exist_ok=True)
        with (self.path / LOCK).open("w", encoding="utf-8") as file:
            if not try_lock(file):
                raise ValueError(f"{self.path}: another process uses this folder; wait until it ends")
            for incomplete in self.path.glob(".*.safetensors.*"):  # from a killed process
                incomplete.unlink()
            yield

    def load(self) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """Return the saved tensors and values, or None; raise ValueError for other settings or a damaged state."""
        if not (self.path / STATE).is_file():
            return None
        try:
            tensors, values = load_tensors(self.path / STATE)
        except DamagedState as error:
            raise ValueError(f"{error}; set another --out to start again") from error
        self._refuse_other_settings(values.get("settings", {}))
        lines = [line for line in self._lines() if _step_of(line) <= values["step"]]  # later steps are repeated
        write_text(self.path / LOG, "".join(f"{line}\n" for line in lines))
        return tensors, {"losses": [], **values}

    def save(self, tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> None:
        """Write the state; the value ``step`` is the number of completed steps."""
        save_tensors(self.path / STATE, tensors, {**values, "settings": self.settings.as_values()})

    def save_model(self, weights: Mapping[str, Tensor], notes: Mapping[str, str], facts: Mapping[str, Any]) -> None:
        save_weights(self.path / MODEL, weights, notes)
        write_json(self.path / FACTS, facts)

    def log(self, record: Mapping[str, Any]) -> None:
        with (self.path / LOG).open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")

    def last_scores(self) -> dict[str, Any]:
        """Return the last scores in the log, or an empty dict."""
        records = [json.loads(line) for line in self._lines()]
        return next((record["scores"] for record in reversed(records) if "scores" in record), {})

    def _lines(self) -> list[str]:
        path = self.path / LOG
        return path.read_text("utf-8").splitlines() if path.is_file() else []

    def _refuse_other_settings(self, saved: Mapping[str, Any]) -> None:
        wanted = self.settings.as_values()
        differing = [name for name in {**wanted, **saved} if wanted.get(name) != saved.get(name)]
        if differing:
            changes = ", ".join(f"{name} was {saved.get(name)}, is now {wanted.get(name)}" for name in differing)
            raise ValueError(
                f"{self.path} contains a pre-training with other settings ({changes}); use the same settings to "
                "continue, or another --out"
            )


def _step_of(line: str) -> float:
    """Return the step of a log line; infinity for a line that a crash has truncated."""
    try:
        return int(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        return float("inf")
