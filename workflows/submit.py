"""Run Eyrie on a cluster: python -m workflows.submit [--address URL] [--detach] experiment=… key=value …

Submits `python -m workflows.eagle3 …` as a Ray job, with the code of this folder, and shows its log. Ctrl-C stops the
job as `ray job stop` does, in time for shards in flight to be committed; a second one leaves it stopping. The exit code
is the driver's. A configuration that is refused is refused here, before anything is sent.
"""

import argparse
import asyncio
import logging
import sys
import time
from collections.abc import Sequence
from typing import Any, NoReturn

import hydra
from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from conf.schema import EyrieConfig
from workflows import config, job
from workflows.errors import ConfigError
from workflows.submitted import exit_code, follow

NEW_CLUSTER_S = 60.0  # a head that has just started takes jobs a few seconds later
ADVICE = "Give --address http://HEAD:8265, or set RAY_API_SERVER_ADDRESS, and see that the dashboard can be reached."


def read(overrides: Sequence[str]) -> EyrieConfig:
    """The configuration that the job will have; ConfigError when it would be refused there, but for the verifier."""
    config.register()
    try:
        with hydra.initialize_config_module("conf", version_base="1.3"):
            composed = hydra.compose("config", list(overrides))
    except (HydraException, OmegaConfBaseException) as error:
        cause = error.__cause__ if isinstance(error, HydraException) else error
        told = config.explain(cause) if isinstance(cause, OmegaConfBaseException) else str(error)
        raise ConfigError(told) from error
    cfg = config.on_this_machine(config.load(composed, in_job=True))
    config.validate(cfg, None)
    return cfg


def connect(address: str | None) -> Any:
    """A client of the cluster's job server; ConfigError says why there is none."""
    import ray
    from ray.exceptions import AuthenticationError
    from ray.job_submission import JobSubmissionClient

    logging.getLogger("ray").setLevel(logging.ERROR)  # it names each file that it leaves out
    try:
        client = JobSubmissionClient(address)
    except AuthenticationError as error:
        raise ConfigError(
            f"the cluster refuses this token: {error}\nSet RAY_AUTH_MODE=token and RAY_AUTH_TOKEN (or "
            "RAY_AUTH_TOKEN_PATH) as on its nodes; docs/clusters.md has more."
        ) from error
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise ConfigError(f"no job server: {error} {ADVICE}") from error
    theirs = client._server_ray_version
    if theirs != ray.__version__:
        raise ConfigError(
            f"the cluster runs Ray {theirs}, and this is {ray.__version__}: install requirements/gpu.txt on its nodes, "
            f"or ray=={theirs} here."
        )
    return client


def submit(client: Any, cfg: EyrieConfig, overrides: Sequence[str]) -> str:
    """Send the job; returns its submission id."""
    deadline = time.monotonic() + NEW_CLUSTER_S
    while True:
        try:
            return client.submit_job(
                entrypoint=job.entrypoint(overrides), runtime_env=job.runtime_env(cfg), metadata=job.metadata(cfg)
            )
        except (RuntimeError, ValueError) as error:
            if "No available agent" in str(error) and time.monotonic() < deadline:
                time.sleep(1)
                continue
            raise ConfigError(
                f"the job was not taken: {error}\nIf {job.ROOT} is too large to upload, name what need not go in its "
                ".rayignore; keep data and outputs elsewhere."
            ) from error


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m workflows.submit", description=__doc__.splitlines()[0])
    parser.add_argument("--address", help="of the dashboard, http://HEAD:8265; else as Ray finds it")
    parser.add_argument("--detach", action="store_true", help="do not wait for the job")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="as for python -m workflows.eagle3")
    args = parser.parse_intermixed_args(argv)
    try:
        cfg = read(args.overrides)
        client = connect(args.address)
        submission = submit(client, cfg, args.overrides)
    except ConfigError as error:
        _refuse(str(error))
    print(f"job {submission}: {cfg.name} in {cfg.output_root}; its page: {client.get_address()}/#/jobs", flush=True)
    if args.detach:
        print(f"log: ray job logs -f {submission}    stop: ray job stop {submission}")
        return 0
    asyncio.run(follow(client, submission, cfg.cluster.stop_grace_s))
    return exit_code(client, submission)


def _refuse(message: str) -> NoReturn:
    print(f"error: {message}", file=sys.stderr)
    raise SystemExit(2)


if __name__ == "__main__":
    sys.exit(main())
