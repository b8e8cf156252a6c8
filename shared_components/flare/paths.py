"""Paths of a FLARE process; the state of runs is outside the folder that FLARE empties."""

from pathlib import Path

from nvflare.apis.fl_constant import FLContextKey, ReservedKey
from nvflare.apis.fl_context import FLContext
from nvflare.private.fed.simulator.simulator_const import SimulatorConstants

from shared_components.federation.runs.state_root import state_root
from shared_components.flare.deployment.app_files import SERVER_CONFIG

ERROR_LENGTH = 400  # characters of a log's last line in a message


def is_simulator(fl_ctx: FLContext) -> bool:
    """Return whether `nvflare simulator` runs this process."""
    flagged = fl_ctx.get_prop(FLContextKey.SIMULATE_MODE)  # FLARE sets it at the clients only
    return bool(flagged) or fl_ctx.get_job_id() == SimulatorConstants.JOB_NAME


def is_node(fl_ctx: FLContext) -> bool:
    """Return whether this party is the node of a region, by its own startup kit."""
    return fl_ctx.get_prop(ReservedKey.IS_LEAF) is False


def workspace_root(fl_ctx: FLContext) -> Path:
    """Return this party's own workspace: `<workspace>/<site>` in a simulator, else the startup kit's folder."""
    return Path(fl_ctx.get_engine().get_workspace().get_root_dir()).resolve()


def job_folder(fl_ctx: FLContext) -> Path:
    """Return FLARE's own folder of the job, which FLARE archives when the job's process has ended."""
    return Path(fl_ctx.get_engine().get_workspace().get_run_dir(fl_ctx.get_job_id()))


def app_config(fl_ctx: FLContext) -> Path:
    """Return the server's configuration of the job."""
    return Path(fl_ctx.get_engine().get_workspace().get_app_config_dir(fl_ctx.get_job_id())) / SERVER_CONFIG


def runs_folder(fl_ctx: FLContext) -> Path:
    """Return the folder of this party's runs."""
    return state_root(workspace_root(fl_ctx), simulator=is_simulator(fl_ctx))


def local_folder(fl_ctx: FLContext) -> Path:
    """Return the `local` folder of a site's own settings."""
    return workspace_root(fl_ctx) / "local"


def last_error(site: str, fl_ctx: FLContext) -> str:
    """Return the end of a site's error log, or a hint at the log if it is on another machine; begins with "; "."""
    if not is_simulator(fl_ctx):
        return f"; the log of {site} has the reason"
    path = workspace_root(fl_ctx).parent / site / "error_log.txt"
    lines = path.read_text(errors="replace").strip().splitlines() if path.is_file() else []
    return f"; {path} ends with: {lines[-1][:ERROR_LENGTH]}" if lines else ""
