"""Report the progress of a run at its server: a line per site and round, TensorBoard, the time left."""

from typing import Any

from shared_components.federation.server.runner import ServerRunner
from shared_components.flare import memory
from shared_components.flare.console import Console
from shared_components.reporting.tensorboard import progress_line, write_scalars


class RoundReporter:
    """Prints what has arrived, and what remains."""

    def __init__(self, server: ServerRunner, console: Console) -> None:
        self.server, self.console = server, console
        self._round_seconds: list[float] = []

    def after_round(self, record: dict[str, Any]) -> None:
        """Note how long a round took, and write its scalars."""
        memory.let_go()
        self._round_seconds.append(record["seconds_wall"] + record.get("seconds_training", 0.0))
        write_scalars(self.server.folder / "server" / "tensorboard", record)

    def report_update(self, record: dict[str, Any]) -> None:
        """Print the line of a site whose update has just arrived, by its record, and write its scalars."""
        recent, rounds = self._round_seconds[-5:], self.server.job.rounds
        left = (rounds - self.server.state.round) * sum(recent) / len(recent) if recent else None
        metric = self.server.first_metric(record["site"])
        self.console.say(progress_line(record, rounds=rounds, seconds_left=left, metric=metric))
        write_scalars(self.server.folder / "server" / "tensorboard", record)

    def title(self, task: str) -> str:
        """Return a task's title for the console: ``round 2/5`` or its name."""
        rounds = self.server.job.rounds
        return f"round {self.server.state.round + 1}/{rounds}" if task == "round" else task
