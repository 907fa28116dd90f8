"""How many replicas there are, and what each of them may use."""

from dataclasses import dataclass
from importlib import import_module

from tiny_llm_engine.machine.repo import IN_CHECKOUT

INSTALL = "pdm install -L pdm.ray.lock -G ray" if IN_CHECKOUT else 'pip install "tiny-llm[ray]"'
# Seconds that Ray waits for its own processes.
PATIENCE = ("RAY_gcs_server_port_wait_time_s", "RAY_gcs_server_request_timeout_seconds")
DEVICES = {"cuda": {"num_gpus": 1}, "hpu": {"resources": {"HPU": 1}}}  # what Ray reserves for each replica


@dataclass(frozen=True)
class ReplicaOptions:
    """The options of the replicas; those of the server are `ServerOptions`.

    Args:
        replicas: how many always run.
        max_replicas: that run under load; None for no more than `replicas`.
        target_ongoing_requests: mean number of open requests of a replica above which more replicas are started.
        max_ongoing_requests: open requests of a replica, at most; its own queue refuses some with 429 before.
        device: of each replica; "cuda" and "hpu" reserve one for each, all others `cpus`.
        block_size: tokens of a KV block, in which the router compares prefixes.
        cpus: cores of each replica; Ray sets its OMP_NUM_THREADS to as many, unless the environment has it.

    Raises:
        ValueError: a number is out of range.
    """

    replicas: int = 2
    max_replicas: int | None = None
    target_ongoing_requests: float = 8.0
    max_ongoing_requests: int = 512
    device: str = "auto"
    block_size: int = 128
    cpus: int = 1

    def __post_init__(self):
        if self.replicas < 1:
            raise ValueError(f"replicas is {self.replicas}: give at least 1")
        if self.max_replicas is not None and self.max_replicas < self.replicas:
            raise ValueError(
                f"max_replicas is {self.max_replicas}: give at least {self.replicas}, as --replicas"
            )

    @property
    def most(self) -> int:
        """Replicas under load."""
        return self.max_replicas or self.replicas

    @property
    def actor_options(self) -> dict[str, object]:
        """What Ray reserves for a replica."""
        return DEVICES.get(self.device, {"num_cpus": self.cpus})

    @property
    def scaling(self) -> dict[str, object]:
        """The deployment's number of replicas, fixed or between two limits."""
        if self.most == self.replicas:
            return {"num_replicas": self.replicas}
        limits = {"min_replicas": self.replicas, "max_replicas": self.most}
        return {
            "num_replicas": "auto",
            "autoscaling_config": {**limits, "target_ongoing_requests": self.target_ongoing_requests},
        }


def check_ray() -> None:
    """Check that Ray Serve is installed.

    Raises:
        ImportError: it is not; names the command that installs it.
    """
    try:
        import_module("ray.serve")
    except ImportError as error:
        raise ImportError(f"--replicas needs Ray Serve: run `{INSTALL}` ({error})") from None


def one_line(error: Exception) -> str:
    """The end of an error's text: what comes first is where it was."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1][-300:] if lines else type(error).__name__


def not_started(error: Exception) -> str:
    """One line about a Ray that does not start, with the variables that give it more time."""
    return f"Ray did not start: {one_line(error)}; on a slow machine set {' and '.join(PATIENCE)} higher (seconds)"
