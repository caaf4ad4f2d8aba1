"""A tier that is reached by TLS, and by a login."""

from __future__ import annotations

import pytest
from prefix_rows import expected, publish, whole
from redis_nodes import SLOTS, RedisNode, free_port


@pytest.fixture(params=[False, True], ids=["server", "cluster"])
def secured(request, tmp_path, certificates):
    """The address of a server, or of a cluster of one node, that speaks TLS and knows one user."""
    port = free_port()
    flags = [
        "--tls-port", str(port), "--tls-auth-clients", "no",
        "--tls-cert-file", str(certificates.server[0]), "--tls-key-file", str(certificates.server[1]),
        "--tls-ca-cert-file", str(certificates.root),
    ]  # fmt: skip
    if request.param:
        flags += ["--cluster-enabled", "yes", "--tls-cluster", "yes"]
    node = RedisNode(tmp_path / "secured", *flags)
    node.start()
    if request.param:
        node.client.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, SLOTS - 1)
    node.client.execute_command("ACL", "SETUSER", "tier", "on", ">a@b", "~*", "+@all")
    kind = "rediss+cluster" if request.param else "rediss"
    yield f"{kind}://tier:a%40b@127.0.0.1:{port}?ssl_ca_certs={certificates.root}"
    node.kill()


def test_a_tier_behind_tls_and_a_login(secured, peer) -> None:
    one, other = peer(secured), peer(secured)
    publish(one, "n", 1, 0, 9)
    one.written("n")
    assert other.lookup("n") == "HIT" and whole(other, "n", 9) == expected((1, 0, 9))


def test_a_certificate_that_is_not_trusted_is_a_tier_that_is_away(secured, peer) -> None:
    server = peer(secured.partition("?")[0])
    publish(server, "n", 1, 0, 9)
    assert server.lookup("n") == "HIT" and server.lookup("absent") == "MISS"
    assert server.tier()["tier_state"].startswith("away")
