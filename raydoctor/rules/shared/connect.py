"""Records of a driver's connection to a cluster: `ray.init` in `worker.py`, 2.9 to 2.60."""

from __future__ import annotations

from raydoctor.case import Case, evidence
from raydoctor.case.rule import Signal
from raydoctor.case.signals import DRIVER
from raydoctor.model.values import Event

INIT_DOC = "https://docs.ray.io/en/latest/ray-core/configure.html"

CONNECTING = Signal(
    "driver.connecting", "Connecting to existing Ray cluster at address: ",
    r"^Connecting to existing Ray cluster at address: (?P<address>(?P<ip>[^\s:]+):(?P<port>\d+))", DRIVER,
    "Connecting to existing Ray cluster at address: 10.0.0.2:6379...", precedes=True,
)  # fmt: skip
CONNECTED = Signal(
    "driver.connected", "Connected to Ray cluster.", r"^Connected to Ray cluster\.", DRIVER,
    "Connected to Ray cluster. View the dashboard at http://127.0.0.1:8265", precedes=True,
)  # fmt: skip
NO_NODE_INFO = Signal(
    "driver.no_node_info", "No node info found matching attributes",
    r"^RuntimeError: No node info found matching attributes", DRIVER,
    "RuntimeError: No node info found matching attributes: '' when trying to resolve node to connect to.",
    symptom=True,
)  # fmt: skip
"""`ray/_private/services.py`, 2.54 and later."""
OTHER_ADDRESS = Signal(
    NO_NODE_INFO.kind, "and Ray expects this IP address to be either ",
    r"^RuntimeError: This node has an IP address of \S{1,60}, and Ray expects this IP address to be either the GCS address or one of the Raylet addresses",
    DRIVER, "RuntimeError: This node has an IP address of 10.0.0.5, and Ray expects this IP address to be either the GCS address or one of the "
    "Raylet addresses. Connected to Ray cluster at 10.0.0.2:6379 and found raylets at 10.0.0.3 but none of these match this node's IP 10.0.0.5.",
    symptom=True,
)  # fmt: skip
"""The same in 2.0 to 2.8 (`_private/services.py`)."""
STARTED_LOCAL = Signal(
    "driver.started_local", "Started a local Ray instance.", r"^Started a local Ray instance\.", DRIVER,
    "Started a local Ray instance. View the dashboard at http://127.0.0.1:8265", precedes=True,
)  # fmt: skip
UNREGISTERED = Signal(
    "driver.unregistered", "Failed to register worker ",
    r"^(?:core[ _]worker[ _]process\.cc:\d{1,5}: )?Failed to register worker (?:(?P<before>[0-9a-f]{56}) )?to Raylet[.:] IOError:(?P<why>[^\n]{0,500}(?:\n *\[RayletClient\][^\n]{0,500})?)",
    (*DRIVER, "core-driver"),
    f"Failed to register worker to Raylet: IOError: [RayletClient] Unable to register worker with raylet. Failed to read data "
    f"from the socket: End of file worker_id=01000000{'f' * 48}", extent="record", symptom=True,
)  # fmt: skip
UNREGISTERED_CUT = Signal(
    UNREGISTERED.kind, "IOError: [RayletClient] Unable to register worker with r",
    r"^IOError: (?P<why>\[RayletClient\] Unable to register worker with r[^\n]{0,500})", DRIVER,
    "IOError: [RayletClient] Unable to register worker with raylet. No such file or directory",
)  # fmt: skip
"""The end of the message, in a paste that breaks it into lines."""
NO_RAYLET = (
    Signal(
        UNREGISTERED.kind, "Failed to get the system config from raylet because it is dead.",
        r"^(?:core[ _]worker(?:[ _]process)?\.cc:\d{1,5}: )?Failed to get the system config from raylet because it is dead\. Worker will terminate\. Status: (?P<why>[^\n]{1,600})",
        (*DRIVER, "core-driver"),
        "Failed to get the system config from raylet because it is dead. Worker will terminate. Status: RpcError: RPC Error message: failed to "
        "connect to all addresses; last error: UNKNOWN: ipv4:10.0.0.2:46339: Failed to connect to remote host: Connection refused",
        symptom=True,
    ),
    Signal(
        UNREGISTERED.kind, "Could not connect to socket ",
        r"^(?P<is_socket>(?:raylet_(?:ipc_)?client(?:_base)?\.cc:\d{1,5}: )?Could not connect to socket) (?P<socket>\S{1,300}/sockets/raylet(?:\.\d{1,5})?)\s*$",
        (*DRIVER, "core-driver"),
        "Could not connect to socket /tmp/ray/session_2026-11-21_10-40-11_306000_7/sockets/raylet", symptom=True,
    ),
)  # fmt: skip
"""The steps before the registration (`core_worker_process.cc`, `raylet_client.cc`, 2.0 to 2.60)."""
NODE_NOT_STARTED = (
    Signal(
        "driver.node_not_started", "The current node timed out during startup",
        r"^Exception: The current node timed out during startup", DRIVER,
        "Exception: The current node timed out during startup. This could happen because some of the raylet failed to startup or "
        "the GCS has become overloaded.",
    ),
    Signal(
        "driver.node_not_started", " seconds while waiting for node to startup",
        r"^TimeoutError: Timed out after (?P<seconds>\d{1,6}) seconds while waiting for node to startup", DRIVER,
        "TimeoutError: Timed out after 60 seconds while waiting for node to startup. Did not find socket name "
        "/tmp/ray/session_2026-11-21_10-40-11_306000_7/sockets/plasma_store in the list of object store socket names.",
    ),
    Signal(
        "driver.node_not_started", "The current node has not been updated within ",
        r"^Exception: The current node has not been updated within (?P<seconds>\d{1,6}) seconds", DRIVER,
        "Exception: The current node has not been updated within 30 seconds, this could happen because of some of the Ray processes "
        "failed to startup.",
    ),
)  # fmt: skip
"""`ray start` and `ray.init` of a new cluster, 2.9 to 2.60 (the last: before 2.7): the raylet did not register in
`RAY_raylet_start_wait_time_s`."""


def connected_to(case: Case, event: Event) -> Event | None:
    """The last `Connecting to …` of the same driver before an event of its output."""
    return evidence.last_before(case, event, CONNECTING.kind)


def is_this_cluster(case: Case, address: Event | None) -> bool:
    """Whether a driver's address may be that of the cluster in the capture.

    Without other evidence the driver's own record decides. A loopback address may be any cluster of its machine.
    """
    known = set(case.ledger.node_ips.values())
    return address is None or not known or address["ip"] in known | {"127.0.0.1", "localhost"}
