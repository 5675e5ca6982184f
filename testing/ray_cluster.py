"""Emulates several machines of a Ray cluster on this machine."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ray.cluster_utils import Cluster

# The least that Ray takes.
STORE_BYTES = 80 * 2**20
# A machine that is killed is missed after about a second, one that is slow to answer is not; and no worker is
# killed for the memory that other programs take.
CARE = {"health_check_period_ms": 200, "health_check_failure_threshold": 5, "memory_monitor_refresh_ms": 0}


@contextmanager
def ray_cluster(first: int, *others: int) -> Iterator[tuple[Cluster, list[Any]]]:
    """Yield a Ray cluster of machines with these numbers of CPUs, and its machines except for the head."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    each: dict[str, Any] = {"object_store_memory": STORE_BYTES, "include_dashboard": False}
    cluster = Cluster(
        initialize_head=True,
        head_node_args={"num_cpus": first, "_system_config": CARE, **each},
        # What it would leave to do at exit keeps a client, which ends a process forked later by Python 3.13.
        shutdown_at_exit=False,
    )
    try:
        yield cluster, [cluster.add_node(num_cpus=count, **each) for count in others]
    finally:
        cluster.shutdown()  # type: ignore[no-untyped-call]
