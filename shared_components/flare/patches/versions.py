"""Supported versions of FLARE, and the source of each function of FLARE that a protection depends on.

`docs/how-to/upgrade-flare.md` adds a version.
"""

SUPPORTED = ("2.9.0", "2.9.1rc5")
SOURCES = {
    "nvflare.app_opt.job_launcher.docker_launcher.DockerJobLauncher._resolve_study_runtime":
        "b5003ca65969a1887c939e9267c53f758bf26a50e83203c46bd46bdf022115bf",
    "nvflare.app_opt.job_launcher.k8s_launcher.K8sJobLauncher._resolve_study_runtime":
        "ba48683c8c06d8787e3d263f6cb2df8703062354b57ecdde606521492c77e4f7",
    "nvflare.app_opt.job_launcher.slurm.launcher.SlurmJobLauncher._load_study_runtime":
        "c759f8cd7543caa63cd647830b2bcfa168cadfd0ffd0bef4d57909caabac9ca1",
    "nvflare.fuel.f3.cellnet.cell._is_server_job_cell":
        "7c83ed82f0c43a8dc9e8a92c5979d02711a571683a7c412a884fc5ae958277ec",
    "nvflare.fuel.f3.cellnet.core_cell.CoreCell._process_received_msg":
        "ed7a0b62ac6ea06585cb0303368c034ea188d0dd237ff2ed7c2ed9827d32671f",
    "nvflare.fuel.f3.cellnet.core_cell.CoreCell._process_request":
        "03cc08b68340d31eb390285c8f28dae989c3a64f2a1879e567dbb67f9a458fab",
    "nvflare.fuel.f3.streaming.byte_streamer.ByteStreamer._ack_handler":
        "8dec079c6bab2776f3bd2438055ea1d176154f7ef9e659f8381b84fd6cf1bc49",
    "nvflare.fuel.f3.streaming.byte_streamer.gen_stream_id":
        "53c9d4a01184d2f399a010f3ede287bb2fcdc9b25d4d6fc8652b343f2ca198da",
    "nvflare.fuel.hci.client.file_transfer.FileTransferModule._tx_path":
        "f3f0004e0cc5e10e158a83f60120c9a5d1f9d48e7603f4381d86f214f09e7dbe",
    "nvflare.fuel.hci.client.file_transfer.FileTransferModule.pull_binary_file":
        "806f1ae53803cb227c25e8820fcdf618d7cdfd6d62db411e848ed6541e869231",
    "nvflare.fuel.hci.client.file_transfer.FileTransferModule.pull_folder":
        "db086d6cc8d709dc49841c16b1a0c33427f20199dd4db6b83d08aaa5819c914e",
    "nvflare.fuel.sec.authn.add_authentication_headers":
        "e5a79547171e212ad129b1bf55c6f960b25b388aa46474237c2262e0809c7cc3",
    "nvflare.fuel.sec.authn.add_server_path_reply_authentication_headers":
        "ae9911ea7ace9f61011bcd70c9223ace9f66613cba02af4c912084d82e39c329",
    "nvflare.fuel.utils.config_factory.ConfigFactory.get_config_loader":
        "2409f7ee771af5fb16bf71ae52a6e3e854fc660c1dc1b82d8b60c9a3b65e5c63",
    "nvflare.lighter.impl.cert.CertBuilder._generate_cert":
        "c8d160f1697e41308a0f3939b9d105d93e266a309d8ab644ede25d9e3ea049d3",
    "nvflare.private.fed.app.default_app_validator._config_exists":
        "4f46fe80a29448e5d8fa9630e50c5561c645a3100fff2dec8a27662924e45e7e",
    "nvflare.private.fed.app.simulator.simulator_runner.SimulatorClientRunner.do_one_task":
        "698a6dd1a4c18c2e0442a2cea36cbc00b6901778616f72969feec2e6a3c8fc9e",
    "nvflare.private.fed.server.fed_server.FederatedServer._resolve_missing_client_outcome":
        "5432b3e7ada6a4df4d896c25c069e51e636df9042a23360ee0310fb4298e8ae8",
    "nvflare.private.fed.server.job_meta_validator.JobMetaValidator._validate_zf":
        "7e8e89f529a119149e5c6e3b555fecac7ed5d486b618acb6e72aba1705a3f703",
    "nvflare.private.fed.server.server_command_agent.ServerCommandAgent.start":
        "3cadf0cf961ea2a022ccc1be5b319f0401a91d8c33b1c807378fad456ba4eb2d",
    "nvflare.private.fed.server.server_engine.ServerEngine.start_client_job":
        "d7e1faa61233aed26ec9f102258e1abd4d8273d82555a03b8c3543ba733a461d",
    "nvflare.private.fed.utils.app_deployer.AppDeployer.deploy":
        "27ffc08a0a99803e5fe8590923689883059377dc6877370a4b91bf1ccfd00407",
}  # fmt: skip
"""SHA-256 of each function's source in the first supported version, see `replace.source_hash`."""
CHANGED = {
    "2.9.1rc5": {
        "nvflare.private.fed.app.simulator.simulator_runner.SimulatorClientRunner.do_one_task":
            "e040a8f7b9501ec71cf5e52530682110d71f1ad0ec9113dac1fa5a3ea3f77299",
        "nvflare.private.fed.server.job_meta_validator.JobMetaValidator._validate_zf":
            "2d6c863280a11decca84bae8ec28524a7761c2996f4f90dd2c428898eee22caf",
    },
}  # fmt: skip
"""SHA-256 of the functions that a later version has changed."""


def expected_source(path: str, version: str) -> str:
    """Return the SHA-256 of a function's source in a version of FLARE; empty if either is not supported."""
    return CHANGED.get(version, {}).get(path) or SOURCES.get(path, "") if version in SUPPORTED else ""


if __name__ == "__main__":  # for `make test-flare-versions`
    print(*SUPPORTED[1:])
