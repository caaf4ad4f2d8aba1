"""The client over TLS: rows of every size both ways, who is trusted, and addresses."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import typer
from pionkv.client import PionPromptCache, StoreClient, Tls, Unavailable
from pionkv.client.endpoint import Endpoint
from pionkv.client.verbs import info
from pionkv.client.verbs_live import bench
from pionkv.kernels import LayerSpec
from server_process import ServerProcess
from typer.testing import CliRunner

DIM = 8192


@pytest.fixture(scope="module")
def served(certificates: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server that wants certificates, and a password."""
    process = ServerProcess(
        tmp_path_factory.mktemp("tls") / "data", *certificates.flags("yes"), "--password", "secret"
    )
    process.start()
    yield process
    process.close()


def own(certificates: Any, **changes: Any) -> Tls:
    files = {"ca_file": certificates.root, "cert_file": certificates.client[0]}
    files["key_file"] = certificates.client[1]
    return Tls(
        **{
            name: value if isinstance(value, bool | None) else str(value)
            for name, value in (files | changes).items()
        }
    )


def url(port: int, certificates: Any) -> str:
    pair = certificates.client
    words = f"ssl_ca_certs={certificates.root}&ssl_certfile={pair[0]}&ssl_keyfile={pair[1]}"
    return f"rediss://:secret@127.0.0.1:{port}?{words}"


@pytest.mark.parametrize("count", [1, 3, 40, 2048])
def test_rows_there_and_back(served: ServerProcess, certificates: Any, count: int) -> None:
    """From 32 KiB to 64 MiB."""
    rows = np.random.default_rng(count).standard_normal((count, DIM), np.float32)
    with StoreClient(port=served.tls_port, password="secret", tls=own(certificates)) as client:
        client.create("rows", LayerSpec("fp32", DIM))
        client.store("rows", 0, 0, rows)
        assert np.array_equal(client.fetch_range("rows", 0, 0, count), rows)
        client.register("p", LayerSpec("fp16", 64))
        for side in ("p_pk", "p_pv"):
            client.store(side, 0, 0, rows[:, :64].copy())
        keys, values = client.fetch_all("p", 0, count, "F16")[0]
        assert np.array_equal(keys, rows[:, :64].astype(np.float16)) and np.array_equal(keys, values)
        assert client.drop("rows") == 1 and client.drop_prefix("p") == 1


def test_an_address_says_it_all(served: ServerProcess, certificates: Any) -> None:
    with StoreClient(url=url(served.tls_port, certificates)) as client:
        client.register("named", LayerSpec("fp16", 64))
        for side in ("named_pk", "named_pv"):
            client.store(side, 0, 0, np.ones((2, 64), np.float16))
    cache = PionPromptCache(url=url(served.tls_port, certificates), lane="tcp")
    assert cache.lookup("named") and not cache.lookup("nobody")
    cache.close()


NOBODY = {"cert_file": None, "key_file": None}


@pytest.mark.parametrize(
    "case, text",
    [
        ("other root", "certificate verify failed"),
        ("other name", "certificate verify failed|mismatch"),
        ("stranger", "refuses the certificate of a client"),
        ("nobody", "refuses the certificate of a client"),
    ],
)
def test_who_is_not_trusted_is_told_so(
    served: ServerProcess, certificates: Any, case: str, text: str
) -> None:
    stranger = {"cert_file": certificates.stranger[0], "key_file": certificates.stranger[1]}
    changes = {"other root": {"ca_file": certificates.other_root}, "stranger": stranger, "nobody": NOBODY}
    tls = own(certificates, **changes.get(case, {}))
    host = "127.1" if case == "other name" else "127.0.0.1"
    with StoreClient(host, served.tls_port, password="secret", tls=tls) as client:
        with pytest.raises(Unavailable, match=text):
            client.ping()
        with pytest.raises(Unavailable, match=text):
            client.fetch("rows", 0, [0])
    with StoreClient(url=url(served.tls_port, certificates)) as client:
        client.ping()


def test_what_is_not_checked_may_be_anybody(served: ServerProcess, certificates: Any) -> None:
    careless = own(certificates, ca_file=certificates.other_root, verify=False)
    with StoreClient("127.1", served.tls_port, password="secret", tls=careless) as client:
        client.ping()


def test_a_model_goes_on_without_a_server_it_does_not_trust(served: ServerProcess, certificates: Any) -> None:
    cache = PionPromptCache(
        port=served.tls_port, password="secret", tls=own(certificates, ca_file=certificates.other_root)
    )
    assert not cache.lookup("named")
    cache.close()


def test_files_that_are_wrong_are_named_at_once(certificates: Any) -> None:
    for tls in (
        Tls(ca_file="/nowhere/ca.pem"),
        Tls(cert_file=str(certificates.server[0]), key_file="/nowhere/key"),
    ):
        with pytest.raises(ValueError, match="/nowhere/"):
            StoreClient(tls=tls)


def test_addresses() -> None:
    assert Endpoint.from_url("redis://h") == Endpoint("h")
    assert Endpoint.from_url("redis://ann:p%40w@[::1]:7/0") == Endpoint("::1", 7, None, "ann", "p@w")
    assert Endpoint.from_url("unix://:pw@/run/p.sock") == Endpoint(
        unix_socket_path="/run/p.sock", password="pw"
    )
    assert Endpoint.from_url("rediss://h?ssl_cert_reqs=none").tls == Tls(verify=False)
    assert "secret" not in repr(Endpoint.from_url("redis://:secret@h"))
    for wrong in (
        "http://h",
        "h:1",
        "redis:///1",
        "redis://h/3",
        "redis://h?ssl_ca_certs=x",
        "rediss://h?a=b",
    ):
        with pytest.raises(ValueError, match="redis"):
            Endpoint.from_url(wrong)


def test_the_verbs_of_the_command_line(served: ServerProcess, certificates: Any) -> None:
    app = typer.Typer()
    app.command("info")(info)
    app.command("bench")(bench)
    there = ("--url", url(served.tls_port, certificates), "--json")
    told = CliRunner().invoke(app, ["info", *there])
    assert told.exit_code == 0 and json.loads(told.stdout)["tls_port"] == served.tls_port
    measured = CliRunner().invoke(app, ["bench", "--megabytes", "1", "--rounds", "1", *there])
    assert measured.exit_code == 0 and json.loads(measured.stdout)[0]["megabytes_per_second"] > 0
    assert CliRunner().invoke(app, ["info", "--url", "http://h"]).exit_code == 2
