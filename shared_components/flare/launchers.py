"""Launchers of a site's jobs in containers, pods and Slurm jobs; the hospital selects image, data and resources.

FLARE's launchers let a job request GPUs, memory and nodes, and select one of the site's studies. `surgfl secure-kit`
replaces them in kits that `nvflare deploy prepare` has made.
"""

from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

from nvflare.apis.fl_context import FLContext
from nvflare.apis.job_def import JobMetaKey
from nvflare.apis.job_launcher_spec import JobHandleSpec, JobLauncherSpec
from nvflare.app_opt.job_launcher.docker_launcher import ClientDockerJobLauncher, DockerJobLauncher
from nvflare.app_opt.job_launcher.k8s_launcher import ClientK8sJobLauncher, K8sJobLauncher
from nvflare.app_opt.job_launcher.slurm import ClientSlurmJobLauncher
from nvflare.app_opt.job_launcher.slurm.launcher import SlurmJobLauncher
from nvflare.app_opt.job_launcher.study_runtime import StudyRuntime
from nvflare.utils.job_launcher_utils import PORTABLE_RESOURCE_DEFAULT_KEY, validate_portable_resource_spec

from shared_components.federation.runs.state_root import STATE_VARIABLE
from shared_components.flare.deployment.prepared import RUNTIME, SAFE, STUDY
from shared_components.flare.patches.replace import expect


def own_choice(job_meta: Mapping[str, Any], resources: Mapping[str, Any]) -> dict[str, Any]:
    """Return a job's description with the site's resources and study instead of the job's.

    Args:
        job_meta: FLARE's description of the job.
        resources: ``num_of_gpus``, ``num_of_cpus`` and ``memory`` (such as ``"8Gi"``) of the job's process.
    """
    return {
        **job_meta,
        JobMetaKey.JOB_LAUNCHER_SPEC.value: {},
        JobMetaKey.RESOURCE_SPEC.value: {PORTABLE_RESOURCE_DEFAULT_KEY: dict(resources)},
        JobMetaKey.STUDY.value: STUDY,
    }


def protect(runtime: StudyRuntime | None, *, container: bool) -> StudyRuntime:
    """Return a study's settings with Python's safe path; in a container, data are read-only and the state is kept.

    RuntimeError: the hospital's file is missing, makes data writable, or would lose the run's state.
    """
    if runtime is None:
        raise RuntimeError(f"local/{RUNTIME}: no such file; run surgfl secure-kit")
    runtime.env[SAFE] = "1"
    if not container:
        return runtime
    state = PurePosixPath(runtime.env.get(STATE_VARIABLE, "/"))
    writable = [data.mount_path for data in runtime.datasets if not data.read_only]
    if not any(state.is_relative_to(path) for path in writable):
        raise RuntimeError(
            f"local/{RUNTIME}: studies.{STUDY}.env.{STATE_VARIABLE} is in no dataset with mode rw, so the "
            "site's models would be lost with the container; add one"
        )
    if open_data := [path for path in writable if not state.is_relative_to(path)]:
        raise RuntimeError(f"local/{RUNTIME}: {', '.join(open_data)} is writable; set its mode to ro")
    return runtime


class _Own(JobLauncherSpec):
    """Let the site's `resources` and its study apply to every job.

    Args:
        resources: See `own_choice`; ValueError for a wrong type or unit.
    """

    def __init__(self, *, resources: Mapping[str, Any], **options: Any) -> None:
        validate_portable_resource_spec({PORTABLE_RESOURCE_DEFAULT_KEY: dict(resources)})
        super().__init__(**options)
        self.resources = resources

    def launch_job(self, job_meta: dict[str, Any], fl_ctx: FLContext) -> JobHandleSpec:
        """Start the job's process with the site's own choice."""
        return super().launch_job(own_choice(job_meta, self.resources), fl_ctx)  # type: ignore[safe-super]


class DockerLauncher(_Own, ClientDockerJobLauncher):
    """Start each job of a site in a container of the hospital's image."""

    def _resolve_study_runtime(self, study: str) -> StudyRuntime:
        own = expect(DockerJobLauncher, "_resolve_study_runtime")
        return protect(own(self, study), container=True)


class KubernetesLauncher(_Own, ClientK8sJobLauncher):
    """Start each job of a site in a pod of the hospital's image."""

    def _resolve_study_runtime(self, workspace_root: str, study: str) -> StudyRuntime:
        own = expect(K8sJobLauncher, "_resolve_study_runtime")
        return protect(own(self, workspace_root, study), container=True)


class SlurmLauncher(_Own, ClientSlurmJobLauncher):
    """Start each job of a site as a Slurm job, with or without a container."""

    def _load_study_runtime(self, study: str | None) -> StudyRuntime:
        own = expect(SlurmJobLauncher, "_load_study_runtime")
        runtime = own(self, study)
        return protect(runtime, container=runtime.slurm.get("sandbox", self.config.sandbox) != "none")
