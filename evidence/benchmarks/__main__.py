"""Print all ratios: `make bench`."""

import tempfile
from pathlib import Path

from evidence.benchmarks import (
    aggregation,
    bare_loop,
    clip_loop,
    clips,
    feature_cache,
    following,
    frame_metrics,
    input_pipeline,
    merged,
    plain_flare,
    records,
    regions,
    rendering,
    scaling,
    simulator,
    site_round,
    streams,
)
from shared_components.federation.runs.provenance import commit, hardware


def main() -> None:
    print(f"commit {commit()}, {hardware()}, one thread per site\n")
    with tempfile.TemporaryDirectory() as folder:
        site_round.main(Path(folder) / "sites")
        print()
        merged.main()
        print()
        clips.main(Path(folder) / "clips")
        print()
        streams.main(Path(folder) / "streams")
        print()
        simulator.main(Path(folder) / "simulator")
        print()
        input_pipeline.main(Path(folder) / "input")
        print()
        bare_loop.main(Path(folder) / "bare")
        print()
        plain_flare.main(Path(folder) / "plain")
    print()
    for method, layers in (("fedavg", 7), ("pfedsis", 0)):  # 0: the method's own network
        scaling.print_line(method, "float32", "sites", [(sites, (sites, layers)) for sites in (3, 16)])
    print()
    records.main()
    print()
    regions.main(["--sites", "64"])
    print()
    clip_loop.main()
    print()
    feature_cache.main()
    print(flush=True)
    following.main()
    print()
    frame_metrics.main()
    print()
    aggregation.main()
    print()
    rendering.main()


if __name__ == "__main__":
    main()
