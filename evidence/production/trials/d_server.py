"""A modified server asks hospitals for files and sends commands without authorisation."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey, MessageType
from nvflare.private.defs import RequestHeader, SysCommandTopic, TrainingTopic
from nvflare.private.fed.client.client_req_processors import ClientRequestProcessors

from evidence.production.deployment import Party
from evidence.production.hostile_server import HostileServer, unguard
from evidence.production.prepared import CHIEF
from evidence.production.results import LONGER, rejected, run_to_end, wait_for_round
from evidence.production.trials import Deploy, trial
from evidence.production.trials.d_people import MEMBER, administrators
from shared_components.flare.deployment.kits import CODE, RIGHTS
from shared_components.flare.patches.site_commands import OF_JOBS, OF_PEOPLE
from tests.flare.simulator import edit

PASSWORDS = Path("/etc/passwd")
SAID = [
    {},
    {RequestHeader.REQUIRE_AUTHZ: "false", RequestHeader.ADMIN_COMMAND: "cat"},
    *(
        {
            RequestHeader.REQUIRE_AUTHZ: "true",
            RequestHeader.ADMIN_COMMAND: command,
            RequestHeader.USER_NAME: CHIEF,
            RequestHeader.USER_ORG: "hospital_a",
            RequestHeader.USER_ROLE: role,
        }
        for command, role in (("cat", "project_admin"), ("check_status", "project_admin"), ("cat", "super"))
    ),
]
"""Claimed requesters: nobody, "no authorisation needed", and an administrator with high roles."""
NETWORK = (
    "cells",
    "peers",
    "conns",
    "url_use",
    "comm_config",
    "config_vars",
    "process_info",
    "msg_stats",
    "list_pools",
)


@trial("server: request sites' files; send FLARE commands without authorisation")
def reading(deploy: Deploy) -> str:
    """Two sites reveal nothing and log each refusal; a third site without message checks reveals requested files."""
    deployment = deploy(change={"administrators": administrators()})
    server = HostileServer(deployment.root, deployment.folder / "requests.json")
    unguard(deployment.root, "hospital-c")
    edit(deployment.server.kit / "local" / "authorization.json", let_members_submit)
    deployment.start()
    run_to_end(deployment, "fedper", name="fedper", rounds=1)
    refused = deployment.submit(deployment.job("fedavg", name="of-a-member", rounds=1), MEMBER)
    deployment.wait(refused)  # the site without checks accepts it
    job = deployment.submit(deployment.job("fedavg", rounds=500, training=LONGER))  # until the trial stops it
    wait_for_round(deployment, "fedavg", 1)
    guarded = [deployment.sites["hospital-a"], deployment.sites["hospital-b"]]
    requests = [one for party in guarded for one in [*files(party), *commands(party), *of_processes(party, job)]]
    answers = server.ask(requests)
    wait_for_round(
        deployment, "fedavg", len(rejected(deployment, "fedavg")) + 2
    )  # the job continues after all requests
    given = [sum(holds(answer, party) for answer in answers) for party in guarded]
    assert given == [0, 0], [answer[:300] for answer in answers if any(holds(answer, p) for p in guarded)]
    told = [answer for answer in answers if answer and "this site refuses it" not in answer]
    assert all(answer.startswith("timeout: None") for answer in told), told[:3]
    for party in guarded:
        assert (party.kit / job).is_dir() and party.pid, "nothing was removed, and it was not ended"
        for words in (
            "a command of the server is refused: no server needs the command sys.shell",
            "a command of the server is refused: no server needs the command train.delete_run",
            f"a command of the server is refused: {TrainingTopic.DEPLOY} names 'local', which is no job's id",
            f"a message of the server is refused: no server needs to ask {party.name} for _net_manager config_vars",
            f"a message of the server is refused: it is in the name of {party.name}",
            f"is refused: {MEMBER} (member) may not submit jobs here",
        ):
            assert words in party.log, (words, party.log[-2000:])
        assert f"no server needs to ask {party.name}.{job} for client_command" in party.job_log(job) + party.log
    bare = deployment.sites["hospital-c"]
    leaked = server.ask(list(files(bare)))
    count = sum(holds(answer, bare) for answer in leaked)
    assert count >= len(SAID[:2]) * 3, "the requests are such that FLARE itself obeys"
    with deployment.session() as session:
        session.abort_job(job)
    assert deployment.wait(job) == "FINISHED:ABORTED", deployment.server.log[-2000:]
    done = rejected(deployment, "fedavg")
    assert done == [{}] * len(done)
    run_to_end(deployment, "fedavg", name="after", rounds=1)
    deployment.shutdown()
    return (
        f"0 of {len(requests)} requests brought a byte of a key, a site.yaml, /etc/passwd or LOCAL state; {count} of "
        f"{len(leaked)} did at a site without the boundary; {len(done)} rounds with all"
    )


def let_members_submit(file: dict[str, Any]) -> None:
    """Let the server accept jobs from a role that no site accepts."""
    file["permissions"]["member"] = {right: "none" if right in CODE else "any" for right in RIGHTS}


def secrets(party: Party) -> dict[str, bytes]:
    """Return secrets of a site's machine, by file."""
    state = max((party.runs("fedper") / party.name).glob("*.safetensors"), key=lambda path: path.stat().st_size)
    paths = [party.kit / "startup" / "client.key", party.kit / "local" / "site.yaml", PASSWORDS, state]
    return {str(path): path.read_bytes() for path in paths}


def holds(answer: str, party: Party) -> bool:
    """Return whether an answer contains a line of a secret, or the name of a site's file."""
    for path, content in secrets(party).items():
        lines = [line for line in content.decode("latin-1").splitlines() if len(line) >= 12]
        if any(repr(line)[1:-1] in answer or line in answer for line in lines):
            return True
        if path.startswith(str(party.kit)) and Path(path).name in answer:
            return True
    return False


def files(party: Party) -> Iterator[dict[str, Any]]:
    """Yield requests for files: each FLARE command that reads files, with each claimed requester."""
    for said in SAID:
        for path in secrets(party):
            for words in ("cat", "head -c 4096", "tail -n 50", "grep -n ."):
                body = f"{words} {path}"
                yield {"command": SysCommandTopic.SHELL, "body": body, "said": said, "to": party.name}
        body = f"ls -R {party.kit}"
        yield {"command": SysCommandTopic.SHELL, "body": body, "said": said, "to": party.name}


def commands(party: Party) -> Iterator[dict[str, Any]]:
    """Yield FLARE's other commands that sites refuse, and jobs named like folders of the kit."""
    topics = {topic for one in ClientRequestProcessors.request_processors for topic in one.get_topics()}
    for topic in sorted(topics - OF_JOBS - set(OF_PEOPLE)):
        for said in SAID:
            more = {**said, RequestHeader.JOB_ID: "local"}
            yield {"command": topic, "body": "DEBUG", "said": more, "to": party.name}
    for folder in ("local", "startup", "..", "surgfl"):
        for topic in (TrainingTopic.DEPLOY, TrainingTopic.START_JOB, TrainingTopic.ABORT):
            said = {RequestHeader.JOB_ID: folder, RequestHeader.JOB_META: {"job_id": folder}}
            yield {"command": topic, "said": said, "to": party.name}


def of_processes(party: Party, job: str) -> Iterator[dict[str, Any]]:
    """Yield requests that bypass a site's commands: to its job's process, about the network, in its own name."""
    own = f"{party.name}.{job}"
    short = {"wait": 0.5}
    for to in (party.name, own):
        yield from ({"channel": "_net_manager", "topic": topic, "to": to, **short} for topic in NETWORK)
        yield {"channel": "_net_manager", "topic": "change_root", "to": to, **short}
        yield {"channel": "aux_communication", "topic": "fed.event", "to": to, **short}
        yield {"channel": "cellnet.channel", "topic": "bulk", "body": [], "to": to, **short}
    for topic in ("show_errors", "show_stats", "configure_job_log", "abort"):
        yield {"channel": "client_command", "topic": topic, "body": "DEBUG", "to": own, **short}
        for name in (party.name, "server"):
            yield {"by": party.name, "headers": headers(name, "client_command", topic, own)}
    for name in (party.name, own):
        handed = headers(name, "admin", "admin", party.name)
        yield {"by": party.name, "command": SysCommandTopic.SHELL, "body": f"cat {PASSWORDS}", "headers": handed}


def headers(name: str, channel: str, topic: str, to: str) -> dict[str, Any]:
    """Return the headers of a request in another party's name."""
    return {
        MessageHeaderKey.MSG_TYPE: MessageType.REQ,
        MessageHeaderKey.REQ_ID: "1",
        MessageHeaderKey.REPLY_EXPECTED: True,
        MessageHeaderKey.ORIGIN: name,
        MessageHeaderKey.FROM_CELL: name,
        MessageHeaderKey.DESTINATION: to,
        MessageHeaderKey.TO_CELL: to,
        MessageHeaderKey.CHANNEL: channel,
        MessageHeaderKey.TOPIC: topic,
    }
