"""Supply-chain checks, one function per row of the table; a row that was not checked is not good."""

import ast
import configparser
import hashlib
import json
import os
import pickletools
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "shared_components"
LOCK = PACKAGE / "flare" / "deployment" / "requirements.lock"
DOCKER = PACKAGE / "flare" / "deployment" / "docker"
LOCKED = ("fl", "monai")
"""Extras of a server or a site."""
WELL, BAD, NOT_DONE = "well", "BAD", "NOT DONE"
PIN = re.compile(r"^([A-Za-z0-9_.-]+)(?:\[[^]]*\])?==([^\s\\;]+)", re.MULTILINE)
HASH = re.compile(r"--hash=sha256:[0-9a-f]{64}\b")
LICENCES = {
    "MIT", "BSD", "APACHE", "ISC", "PSF", "PYTHON SOFTWARE FOUNDATION", "MPL", "MOZILLA PUBLIC LICENSE", "ZLIB", "0BSD",
    "CC0", "CNRI", "BSL-1.0", "UNLICENSE", "PUBLIC DOMAIN", "HPND", "LLVM", "NVIDIA",
}  # fmt: skip
"""Words of compatible licences; every part of a compound licence must contain one."""
EXCEPTIONS = {"av": "its wheels bring FFmpeg with libx264, which is GPL: installed beside, never distributed by us"}
ALLOWED_GLOBALS = re.compile(r"^(collections OrderedDict|torch\._utils _rebuild_tensor_v2|torch \w+Storage)$")
RISKY = {"pickle.load", "pickle.loads", "marshal.loads", "shelve.open", "joblib.load", "eval", "exec", "os.system"}


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    what: str
    figures: str
    verdict: str


def tool(name: str) -> str | None:
    """Return the path of a tool beside this Python or on PATH."""
    beside = Path(sys.executable).with_name(name)
    return str(beside) if beside.is_file() else shutil.which(name)


def run(*words: str | Path, **options) -> subprocess.CompletedProcess[str]:
    """Run a tool and return its output."""
    return subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=900, **options)


def pins(path: Path) -> dict[str, str]:
    """Return names and versions of a file of requirements."""
    return {name.lower().replace("_", "-"): version for name, version in PIN.findall(path.read_text(encoding="utf-8"))}


def write_lock() -> None:
    """Resolve the requirements of setup.cfg at the versions of requirements.txt, with a hash for every file."""
    with tempfile.TemporaryDirectory() as folder:
        constraints = Path(folder) / "constraints.txt"
        lines = (ROOT / "requirements.txt").read_text("utf-8").splitlines()
        constraints.write_text("\n".join(line for line in lines if not line.startswith("-e")))
        done = run(
            tool("uv"), "pip", "compile", ROOT / "setup.cfg", *(f"--extra={extra}" for extra in LOCKED),
            "--constraint", constraints, "--generate-hashes",
            "--python-version", "3.11", "--python-platform", "x86_64-manylinux_2_28", "--no-emit-index-url",
            "--no-header", "--no-annotate", "--quiet", "--output-file", LOCK,
        )  # fmt: skip
    if done.returncode:
        raise SystemExit(f"uv could not resolve the lock file: {done.stderr.strip()}")


def lock(lock_file: Path = LOCK) -> Row:
    """Check that each package has one version with hashes, as in requirements.txt, and no address."""
    text, locked = lock_file.read_text(encoding="utf-8"), pins(lock_file)
    entries = re.split(r"(?m)^(?=[A-Za-z0-9])", text)[1:]
    wrong = [entry.split()[0] for entry in entries if not HASH.search(entry) or not PIN.match(entry)]
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    asked = [
        re.split(r"[^A-Za-z0-9_-]", line)[0].lower()
        for lines in (setup["options"]["install_requires"], *(setup["options.extras_require"][e] for e in LOCKED))
        for line in lines.split("\n")
        if line
    ]
    wrong += [name for name in asked if name not in locked]
    ours = pins(ROOT / "requirements.txt")
    wrong += [
        f"{name} {locked[name]}, not {ours[name]}" for name in locked if name in ours and ours[name] != locked[name]
    ]
    wrong += re.findall(r"\S+://\S+|--(?:extra-)?index-url.*", text)
    figures = f"{len(locked)} packages, {len(HASH.findall(text))} hashes"
    return Row("lock file", f"{figures}; {', '.join(wrong) or 'nothing unpinned, no address'}", BAD if wrong else WELL)


def vulnerabilities(out: Path) -> Row:
    """Check for known vulnerabilities; a package that the service does not know counts as not checked."""
    report = out / "vulnerabilities.json"
    words = ["-r", LOCK, "--disable-pip", "--no-deps", "--format", "json", "--output", report]
    done = run(tool("pip-audit"), *words)
    if not report.is_file():
        reason = (done.stderr.strip().splitlines() or ["no report"])[-1][:120]
        return Row("known vulnerabilities", f"the service could not be asked: {reason}", NOT_DONE)
    return told(json.loads(report.read_text("utf-8"))["dependencies"])


def told(found: list[dict]) -> Row:
    """Read a report of pip-audit."""
    skipped = [one["name"] for one in found if "skip_reason" in one]
    bad = [f"{one['name']} {hole['id']}" for one in found for hole in one.get("vulns", ())]
    figures = f"{len(found) - len(skipped)} of {len(found)} packages looked up, {len(bad)} vulnerabilities"
    if bad:
        return Row("known vulnerabilities", f"{figures}: {', '.join(bad[:5])}", BAD)
    if skipped or not found:
        return Row("known vulnerabilities", f"{figures}; the service here did not know {len(skipped)}", NOT_DONE)
    return Row("known vulnerabilities", figures, WELL)


def bandit(out: Path) -> Row:
    """Check for dangerous calls; each allowed call has a reason beside it."""
    report = out / "bandit.json"
    run(tool("bandit"), "-q", "-r", PACKAGE, "-c", ROOT / "pyproject.toml", "-f", "json", "-o", report)
    if not report.is_file():
        return Row("dangerous calls (bandit)", "no report", NOT_DONE)
    found = json.loads(report.read_text("utf-8"))
    totals = found["metrics"]["_totals"]
    places = [f"{Path(r['filename']).name}:{r['line_number']} {r['test_id']}" for r in found["results"]]
    excused = totals["nosec"] + totals["skipped_tests"]
    figures = f"{totals['loc']} lines, {len(places)} findings, {excused} with a reason"
    return Row("dangerous calls (bandit)", f"{figures} {', '.join(places[:5])}".strip(), BAD if places else WELL)


def unlicensed(licence: str) -> bool:
    """Return whether a part of a compound licence is incompatible."""
    parts = re.split(r"\s+AND\s+|;", re.sub(r"[()]", " ", licence.upper()))
    return not all(any(word in part for word in LICENCES) for part in parts)


def licences(out: Path, python: str) -> Row:
    """List the licences of locked and installed packages."""
    done = run(tool("pip-licenses"), f"--python={python}", "--format=json", "--from=mixed")
    if done.returncode:
        return Row("licences", done.stderr.strip()[:120], NOT_DONE)
    locked = pins(LOCK)
    rows = [row for row in json.loads(done.stdout) if row["Name"].lower().replace("_", "-").replace(".", "-") in locked]
    (out / "licences.json").write_text(json.dumps(rows, indent=1))
    wrong = [f"{row['Name']} ({row['License'][:40]})" for row in rows if unlicensed(row["License"])]
    kinds = len(Counter(row["License"] for row in rows))
    absent = len(locked) - len(rows)
    figures = f"{len(rows)} packages under {kinds} licences, {absent} not installed here, {len(EXCEPTIONS)} exception"
    return Row("licences", f"{figures}; {', '.join(wrong) or 'all on the list'}", BAD if wrong else WELL)


def bill_of_materials(out: Path) -> Row:
    """Write a CycloneDX list of all locked packages."""
    path = out / "sbom.json"
    done = run(tool("cyclonedx-py"), "requirements", LOCK, "--output-file", path)
    if done.returncode or not path.is_file():
        return Row("bill of materials", done.stderr.strip()[:120], NOT_DONE)
    bill = json.loads(path.read_text("utf-8"))
    listed = {part["name"].lower().replace("_", "-") for part in bill["components"]}
    missing = sorted(set(pins(LOCK)) - listed)
    figures = f"{bill['bomFormat']} {bill['specVersion']}, {len(listed)} components"
    return Row("bill of materials", f"{figures} {' '.join(missing)}".strip(), BAD if missing else WELL)


def wheel(out: Path) -> Row:
    """Build the wheel twice, in two folders, and compare the bytes."""
    when = run("git", "log", "-1", "--format=%ct", cwd=ROOT).stdout.strip() or "315532800"
    variables = {**os.environ, "SOURCE_DATE_EPOCH": when, "PYTHONHASHSEED": "0"}
    files = run("git", "ls-files", "--cached", "--others", "--exclude-standard", cwd=ROOT).stdout.split()
    built = []
    for name in ("first", "second"):
        source = out / "wheel" / name / "source"
        for file in [file for file in files if (ROOT / file).is_file()]:
            (source / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / file, source / file)
            os.chmod(source / file, 0o644)
        words = [
            "-m",
            "pip",
            "wheel",
            "--no-deps",
            "--no-build-isolation",
            "--quiet",
            "--wheel-dir",
            source.parent,
            source,
        ]
        done = run(sys.executable, *words, env=variables)
        if done.returncode:
            return Row("reproducible wheel", done.stderr.strip()[-160:], NOT_DONE)
        built += source.parent.glob("*.whl")
        shutil.rmtree(source)
    sums = {hashlib.sha256(path.read_bytes()).hexdigest() for path in built}
    size, shown = built[0].stat().st_size / 1e6, ", ".join(sorted(total[:16] for total in sums))
    figures = f"built twice: {built[0].name}, {size:.1f} MB, sha256 {shown}"
    return Row("reproducible wheel", figures, WELL if len(sums) == 1 and len(built) == 2 else BAD)


def pickles(out: Path) -> Row:
    """Check sources for calls that unpickle, and the wheel's archives for the imports of their pickles."""
    sources = [*PACKAGE.rglob("*.py"), *(ROOT / "nvflare_jobs").rglob("*.py")]
    bad = [f"{path.relative_to(ROOT)}:{line} {name}" for path in sources for line, name in risky(path)]
    archives = [path for path in (ROOT / "bundles").rglob("*.pt") if path.is_file()]
    bad += [
        f"{path.name}: {name}"
        for path in archives
        for name in sorted(globals_of(path))
        if not ALLOWED_GLOBALS.match(name)
    ]
    figures = f"{len(sources)} sources, {len(archives)} .pt files"
    return Row("pickles", f"{figures}; {', '.join(bad) or 'tensors alone'}", BAD if bad else WELL)


def risky(path: Path) -> list[tuple[int, str]]:
    """Return the calls of a source that execute their input."""
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.Call):
            continue
        name = ast.unparse(node.func)
        said = {key.arg: ast.unparse(key.value) for key in node.keywords}
        unsafe = name in RISKY or (name == "torch.load" and said.get("weights_only") != "True")
        unsafe |= said.get("allow_pickle") == "True" or name in ("yaml.load", "yaml.unsafe_load")
        if unsafe:
            found.append((node.lineno, name))
    return found


def globals_of(path: Path) -> set[str]:
    """Return the imports of a checkpoint's pickle, from its opcodes; nothing is unpickled."""
    names: set[str] = set()
    with zipfile.ZipFile(path) as archive:
        for member in [name for name in archive.namelist() if name.endswith(".pkl")]:
            texts: list[str] = []
            for code, argument, _ in pickletools.genops(archive.read(member)):
                if isinstance(argument, str):
                    texts.append(argument)
                if code.name == "GLOBAL":
                    names.add(str(argument))
                elif code.name == "STACK_GLOBAL":
                    names.add(" ".join(texts[-2:]))
    return names


def containers(out: Path) -> list[Row]:
    """Lint the Dockerfile, and check the compose file against the published schema."""
    return [dockerfile(), compose()]


def dockerfile() -> Row:
    """Run hadolint."""
    if not (linter := tool("hadolint")):
        return Row("Dockerfile", "hadolint is not installed", NOT_DONE)
    done = run(linter, DOCKER / "Dockerfile")
    lines = done.stdout.strip().splitlines()
    return Row(
        "Dockerfile", f"hadolint: {len(lines)} findings {' '.join(lines[:2])}".strip(), BAD if done.returncode else WELL
    )


def compose() -> Row:
    """Run dclint from npm, which contains the compose specification's schema."""
    if not (linter := os.environ.get("DCLINT") or shutil.which("dclint")):
        return Row("compose.yaml", "dclint is not installed: npm install dclint, and name it in DCLINT", NOT_DONE)
    done = run(linter, DOCKER / "compose.yaml")
    found = [line for line in done.stdout.splitlines() if re.search(r"\b(error|warning)\b", line)]
    return Row("compose.yaml", f"dclint: {len(found)} findings", BAD if done.returncode or found else WELL)
