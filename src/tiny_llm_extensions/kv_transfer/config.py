"""The options of a KV connector, with vLLM's names."""

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, fields
from ipaddress import ip_address
from typing import Any

from tiny_llm_engine.known_arguments import ANYTHING, Table, without_known

SECRET = "TINY_LLM_KV_SECRET"  # the environment variable that may hold the secret
ROLES = ("kv_producer", "kv_consumer", "kv_both")
TRANSPORTS = ("shared_memory", "tcp")
EXTRA = ("secret", "patience", "abort_request_timeout", "transport")
VLLMS: Table = {
    **dict.fromkeys(("engine_id", "kv_rank", "kv_buffer_device"), (ANYTHING, "")),
    "kv_parallel_size": ((1,), "an engine is one copy of the model"),
    "kv_load_failure_policy": (("recompute",), "what does not come is computed here"),
    "kv_connector_module_path": ((), "no code is imported by name"),
}


def is_number(value: Any, kind: type = float, most: float = 2**48) -> bool:
    """Whether it is a number of a kind, from 0 to `most`; whole ones are floats too."""
    return type(value) in (int, kind) and 0 <= value <= most


@dataclass(frozen=True)
class KVTransferConfig:
    """How an engine shares keys and values. `LLM(kv_transfer_config={…})` takes an object with these fields.

    Args:
        kv_role: "kv_producer" computes prompts for others, "kv_consumer" reads them, "kv_both" does both.
        kv_connector: "TinyConnector".
        kv_ip: the address at which a producer listens.
        kv_port: its port; 0 picks a free one.
        kv_buffer_size: bytes in which a producer keeps what was not read yet.
        secret: of all engines that read each other, needed for addresses other than the loopback one. It is read from
            the environment variable TINY_LLM_KV_SECRET if it is not given. It and the following ones are fields of
            `kv_connector_extra_config`.
        patience: seconds without news after which a consumer computes the rest of a prompt itself.
        abort_request_timeout: seconds for which a producer keeps a prompt that nobody reads, after its request has
            ended. vLLM has VLLM_NIXL_ABORT_REQUEST_TIMEOUT.
        transport: "shared_memory" reads a producer on the same host through shared memory, "tcp" never does.

    Raises:
        ValueError: a value is out of range or missing.
    """

    kv_role: str = ""
    kv_connector: str = "TinyConnector"
    kv_ip: str = "127.0.0.1"
    kv_port: int = 14579
    kv_buffer_size: float = 1e9
    secret: str = ""
    patience: float = 10.0
    abort_request_timeout: float = 480.0
    transport: str = "shared_memory"

    def __post_init__(self):
        numbers = ("kv_buffer_size", "patience", "abort_request_timeout")
        for name, is_right, wanted in (
            ("kv_role", self.kv_role in ROLES, f"one of {', '.join(ROLES)}"),
            ("kv_connector", self.kv_connector == "TinyConnector", "TinyConnector"),
            ("transport", self.transport in TRANSPORTS, f"one of {', '.join(TRANSPORTS)}"),
            ("secret", isinstance(self.secret, str), "a text"),
            ("kv_port", is_number(self.kv_port, int, 2**16 - 1), "a port, or 0 for a free one"),
            *((name, is_number(getattr(self, name)), "a number") for name in numbers),
            ("kv_ip", self.may_reach(self.kv_ip), "a loopback address, or a secret too"),
        ):
            if not is_right:
                raise ValueError(f"kv_transfer_config: {name} is {getattr(self, name)!r}: give {wanted}")

    def may_reach(self, host: Any) -> bool:
        """Whether an engine at this address may be talked to: without a secret only one on this host."""
        with suppress(ValueError):
            return bool(self.secret) or host == "localhost" or ip_address(str(host)).is_loopback
        return False

    @property
    def is_kv_producer(self) -> bool:
        return self.kv_role != "kv_consumer"

    @property
    def is_kv_consumer(self) -> bool:
        return self.kv_role != "kv_producer"

    @classmethod
    def of(cls, given: Any) -> "KVTransferConfig":
        """The options of an object, such as a JSON text has them.

        Raises:
            ValueError: it is not an object, has other names, or see above.
        """
        if not isinstance(given, Mapping):
            raise ValueError(
                f"kv_transfer_config is {given!r}: give an object such as {{'kv_role': 'kv_both'}}"
            )
        chosen = {name: value for name, value in without_known(given, VLLMS).items() if value is not None}
        extra = chosen.pop("kv_connector_extra_config", {})
        names = [each.name for each in fields(cls) if each.name not in EXTRA]
        strange = [name for name in chosen if name not in names] + [
            name for name in extra if name not in EXTRA
        ]
        if strange:
            known = ", ".join((*names, *EXTRA))
            raise ValueError(f"kv_transfer_config: {strange[0]!r} is unknown: give {known}")
        return cls(**{"secret": os.environ.get(SECRET, ""), **chosen, **extra})
