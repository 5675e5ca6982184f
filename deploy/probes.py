"""Commands that succeed while a service is healthy; each runs where the service does."""


def https_probe(url: str, trusted: str) -> tuple[str, ...]:
    """One that gets a page over TLS; `trusted`: the file of the authority."""
    return (
        *("python", "-c"),
        "import ssl, sys, urllib.request as r; "
        "r.urlopen(sys.argv[1], context=ssl.create_default_context(cafile=sys.argv[2]), timeout=5)",
        *(url, trusted),
    )


def http_probe(url: str) -> tuple[str, ...]:
    """One that gets a page in clear."""
    return ("python", "-c", "import sys, urllib.request as r; r.urlopen(sys.argv[1], timeout=15)", url)


def health_probe(address: str) -> tuple[str, ...]:
    """One that asks for the health of a SuperExec over gRPC."""
    return (
        *("python", "-c"),
        "import grpc, sys; from grpc_health.v1 import health_pb2 as h, health_pb2_grpc as g; "
        "c = grpc.insecure_channel(sys.argv[1]); "
        "sys.exit(g.HealthStub(c).Check(h.HealthCheckRequest(), timeout=5).status != 1)",
        address,
    )


def socket_probe(path: str) -> tuple[str, ...]:
    """One that opens a Unix socket."""
    return ("python", "-c", "import socket, sys; socket.socket(socket.AF_UNIX).connect(sys.argv[1])", path)
