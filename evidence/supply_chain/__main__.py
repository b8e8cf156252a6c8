"""Run the supply-chain checks and print a table; exit status 1 if a row is bad or was not checked.

make supply-chain                                 # everything, into demo/supply-chain
python -m evidence.supply_chain --write-lock         # resolve the lock file again
"""

import argparse
import sys
from pathlib import Path

from evidence.supply_chain import checks
from evidence.supply_chain.checks import NOT_DONE, WELL, Row


def main() -> int:
    """Run all checks."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("demo/supply-chain"), metavar="FOLDER")
    parser.add_argument("--python", default=sys.executable, help="of the environment whose licences are listed")
    parser.add_argument("--write-lock", action="store_true", help="write the lock file anew, and nothing else")
    args = parser.parse_args()
    if args.write_lock:
        checks.write_lock()
        return 0
    out = args.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    rows = [
        checks.lock(), checks.vulnerabilities(out), checks.bandit(out), checks.licences(out, args.python),
        checks.bill_of_materials(out), checks.wheel(out), checks.pickles(out), *checks.containers(out),
    ]  # fmt: skip
    table = as_table(rows)
    (out / "summary.txt").write_text(table + "\n")
    print(table)
    return int(any(row.verdict != WELL for row in rows))


def as_table(rows: list[Row]) -> str:
    """Save the rows."""
    width = max(len(row.what) for row in rows)
    lines = [f"{row.verdict:<9} {row.what:<{width}}  {row.figures}" for row in rows]
    missing = [row.what for row in rows if row.verdict == NOT_DONE]
    well = sum(row.verdict == WELL for row in rows)
    return "\n".join([*lines, f"{well} of {len(rows)} rows well" + f"; not done: {', '.join(missing)}" * bool(missing)])


if __name__ == "__main__":
    sys.exit(main())
