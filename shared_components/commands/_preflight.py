"""Do the work of `surgfl preflight`."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from shared_components.common.counted import counted
from shared_components.common.sanitise import printable
from shared_components.core.method import load_method, method_names
from shared_components.core.task import choose_task
from shared_components.data.site import Site
from shared_components.data.site_file import load_site
from shared_components.federation.messages import Job
from shared_components.federation.setup.allowed_payload import expect
from shared_components.federation.setup.limits import check_limits
from shared_components.federation.site.disclosure import WhatLeaves, what_leaves
from shared_components.flare.deployment.job_folder import JobFolder, Named, read_job_folder
from shared_components.flare.deployment.kits import ALLOW_LIST
from shared_components.networks.bundle_config import bundle_for
from shared_components.reporting.tables import Table, as_text

if TYPE_CHECKING:
    from shared_components.flare.class_allow_list import Policy

_CLASSES = ("background", "a", "b", "c")  # without --site
_LEAVES = {True: "yes", False: "no", None: "may"}


def run(args: argparse.Namespace) -> int:
    """Print the report; 1 if the job would be refused."""
    from shared_components.flare.class_allow_list import policies_of_list, policy_of_kit

    policies = (policy_of_kit(args.kit),) if args.kit else policies_of_list(args.allow_list or ALLOW_LIST)
    site = load_site(args.site) if args.site else None
    job, refusals = None, []
    if Path(args.job).is_dir():
        folder = read_job_folder(Path(args.job))
        job, refusals = folder.job, _report_folder(folder, policies)
    elif args.job in method_names():
        job = Job(name=args.job, bundle=bundle_for(args.job), method=args.job)
        print(f"{args.job}: no job, the method with its own defaults in bundle {job.bundle}")
    else:
        raise ValueError(f"{args.job!r} is neither a job folder nor a method; methods: {', '.join(method_names())}")
    if job is not None:
        refusals += _report_what_leaves(job, site, args.json)
    for words in filter(None, (policy.unguarded() for policy in policies)):
        print(f"WARNING: {words}")
    for refusal in dict.fromkeys(refusals):
        print(f"REFUSED: {printable(refusal)}")
    print(f"{args.job}: {'would be refused' if refusals else 'nothing to refuse'}")
    return int(bool(refusals))


def _report_folder(folder: JobFolder, policies: Sequence[Policy]) -> list[str]:
    """Print the contents of a job folder; return the reasons to refuse it."""
    refusals = list(folder.problems)
    rows = []
    for named in folder.named:
        verdict, refusal = _verdict(named, policies)
        rows.append((named.side, named.path or "-", verdict))
        refusals += [refusal] if refusal else []
    print(as_text(Table("Classes", ("at the", "class", ""), tuple(dict.fromkeys(rows)), labels=3)))
    for remark in filter(None, (policy.remark() for policy in policies)):
        print(f"note: {remark}")
    note, *code_refusals = _code(folder, policies)
    print(f"code: {printable(note)}")
    print(f"files that nobody needs: {printable(', '.join(folder.unneeded)) or 'none'}")
    refusals += [f"{name} is a file that nobody needs; take it out of the job" for name in folder.unneeded]
    if folder.job is None and not folder.problems:
        refusals.append("it names no controller of this project, so its outgoing data are unknown")
    return refusals + code_refusals


def _verdict(named: Named, policies: Sequence[Policy]) -> tuple[str, str]:
    """Return a word for the table, and the reason if the class is refused."""
    policy = next((policy for policy in policies if policy.side == named.side), None)
    if policy is None:
        return "not asked: the list is another party's", ""
    if reason := policy.refusal(named.path):
        return "REFUSED", f"{named.place}: {named.path or 'no class'} is refused by {policy.source} ({reason})"
    return "allowed", ""


def _code(folder: JobFolder, policies: Sequence[Policy]) -> list[str]:
    """Return a line about a job's code, followed by the reasons to refuse it."""
    if folder.code:
        code = ", ".join(folder.code)
        return [code, f"it brings code: {code}; jobs here need none, take it out"]
    if not folder.marked:
        return ["none"]
    marked = ", ".join(folder.marked)
    note = f"none, but {marked} is there, for the simulator: FLARE takes a job with it for one with code"
    if any(policy.forbids_code for policy in policies):
        return [note, f"{marked} is there, empty, and the site forbids code; submit the job without it"]
    return [f"{note}; a site that forbids code takes the copy without"]


def _report_what_leaves(job: Job, site: Site | None, path: Path | None) -> list[str]:
    """Print the outgoing data; return the reasons to refuse the job."""
    try:
        bundle = job.open_bundle()
        method = load_method(job.method, **job.arguments)
        if site is None:
            task = choose_task(bundle.tasks, "", classes=_CLASSES, who="a site")
        else:
            task = choose_task(bundle.tasks, site.task, classes=site.classes, who=str(site.path))
            check_limits(job, bundle, task, site)
        expected = expect(job, method, task)
    except ValueError as error:
        return [str(error)]
    report = what_leaves(job, expected, publish=site.publish if site else None, withhold=site.withhold if site else ())
    _print(report)
    if path:
        path.write_text(json.dumps(report.to_json(), indent=1) + "\n", encoding="utf-8")
    if site and (missing := sorted(method.requires.items - set(site.publish))):
        return [f"{site.path} does not publish {missing[0]!r}, which {method.name} needs"]
    return []


def _print(report: WhatLeaves) -> None:
    weights = tuple(
        (w.role.upper(), str(w.tensors), str(w.numbers), f"{w.bytes / 1e6:.2f}", "leaves" if w.leaves else "stays")
        for w in report.weights
    )
    print(as_text(Table("Weights", ("role", "tensors", "numbers", "MB", ""), weights)))
    parts = tuple(
        (p.task, p.name, p.form, f"{p.bytes / 1e6:.2f}" if p.bytes else "-", _LEAVES[p.leaves], p.why)
        for p in report.parts
    )
    print(as_text(Table("What leaves the site", ("answer to", "what", "form", "MB", "leaves", "why"), parts, labels=6)))
    print(
        f"megabytes: {report.bytes_of('round') / 1e6:.2f} per round, at most {report.bytes_in_all / 1e6:.2f} in "
        f"{counted(report.rounds, 'round')}; plain values are a few kilobytes"
    )
