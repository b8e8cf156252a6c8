"""Run the trials and print the table: `make prod-test`.

python -m evidence.production                       # all, at most an hour on two cores
python -m evidence.production --quick               # the trials that CI runs
python -m evidence.production --only "killed"       # trials whose description contains this
"""

import argparse
import sys
import tempfile
import time
import traceback
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path

from evidence.production.deployment import Deployment
from evidence.production.trials import Trial, all_trials
from shared_components.common.atomic import write_text
from shared_components.federation.runs.provenance import commit, hardware
from shared_components.scenes.site import plan_sites, write_site
from tests.federation.conftest import VIDEOS

SITES = ("hospital-a", "hospital-b", "hospital-c")


@dataclass(frozen=True)
class Row:
    """Result of a trial."""

    trial: Trial
    survived: bool
    figure: str
    seconds: float


def main() -> int:
    """Run trials and print the table; return 1 if a trial failed, 2 if none was selected."""
    parser = argparse.ArgumentParser(prog="python -m evidence.production")
    parser.add_argument("--quick", action="store_true", help="only the trials that CI runs")
    parser.add_argument("--only", default="", metavar="WORDS", help="only the trials whose words hold these")
    parser.add_argument("--out", type=Path, metavar="FILE", help="also write the table there, as Markdown")
    args = parser.parse_args()
    chosen = [one for one in all_trials() if args.only in one.words and (one.quick or not args.quick)]
    if not chosen:
        print(f"no trial's words hold {args.only!r}; there are {len(all_trials())}", file=sys.stderr)
        return 2
    print(f"{len(chosen)} trials, commit {commit()}, {hardware()}\n", flush=True)
    begun, rows = time.monotonic(), []
    with tempfile.TemporaryDirectory(prefix="surgfl-trials-") as folder:
        scenes = render(Path(folder) / "scenes")
        for number, one in enumerate(chosen):
            rows.append(run(one, Path(folder) / str(number), scenes))
            row = rows[-1]
            print(
                f"{'survived' if row.survived else 'LOST':9}{row.seconds:5.0f} s  {one.words}: {row.figure}", flush=True
            )
    lost = sum(not row.survived for row in rows)
    text = (
        table(rows)
        + f"\n{len(rows) - lost} of {len(rows)} survived, in {(time.monotonic() - begun) / 60:.0f} minutes\n"
    )
    print(f"\n{text}")
    if args.out:
        write_text(args.out, f"commit {commit()}, {hardware()}\n\n{text}")
    return 1 if lost else 0


def render(folder: Path) -> list[Path]:
    """Write three tiny sites; return their site.yaml files."""
    plans = plan_sites(folder, sites=len(SITES))
    for plan in plans:
        write_site(
            plan.folder, look=plan.look, seed=plan.seed, layout=plan.layout, videos=VIDEOS,
            frames_per_video=4, height=64, width=96,
        )  # fmt: skip
    return [plan.folder / "site.yaml" for plan in plans]


def run(one: Trial, folder: Path, scenes: list[Path]) -> Row:
    """Run one trial in its own folder, and end all its processes."""
    made: list[Deployment] = []

    def deploy(*names: str, **options: object) -> Deployment:
        sites = dict(zip(names or SITES, cycle(scenes), strict=False))
        made.append(Deployment(folder / f"deployment-{len(made)}", sites, **options))
        return made[-1]

    begun, survived = time.monotonic(), False
    try:
        figure = one.run(deploy)
        survived = True
    except Exception as error:
        traceback.print_exc()
        figure = f"{type(error).__name__}: {error}".splitlines()[0][:300]
    finally:
        for deployment in made:
            deployment.kill()
    return Row(one, survived, figure, time.monotonic() - begun)


def table(rows: list[Row]) -> str:
    """Return the rows as Markdown."""
    lines = ["| What was tried | What was seen | Survived | Seconds |", "|---|---|---|---:|"]
    for row in rows:
        cells = [row.trial.words, row.figure, "yes" if row.survived else "**no**", f"{row.seconds:.0f}"]
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
