"""The picture of the page in docs/images: a server under a real model's prefixes, shown by Chromium.

Usage: python page_picture.py [seconds, default 60]
"""

from __future__ import annotations

import asyncio
import base64
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from pionkv.kernels.blas import preload_blas

preload_blas()

import aiohttp  # noqa: E402
import redis  # noqa: E402
from pionkv.client import PionPromptCache  # noqa: E402
from pionkv.client.demo import conversation, smollm  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tests"))

from server_process import ServerProcess  # noqa: E402

PICTURE = ROOT / "docs" / "images" / "page.png"
CHROMIUM = (
    "chromium", "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--window-size=1280,1187",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--hide-scrollbars",
    "--remote-debugging-port=0",
)  # fmt: skip
BUDGET = "80mb"
"""Less than the prefixes below take: the first of them goes."""
PREFIXES = (
    ("handbook:2024", 600, "auto"),
    ("handbook:fp16", 920, "fp16"),
    ("handbook:int8", 920, "int8"),
    ("handbook:mlx4g32", 920, "mlx4g32"),
    ("handbook:short", 400, "auto"),
)
"""Name, tokens, format."""
PAUSE = 0.05


def fill(port: int) -> list[tuple[PionPromptCache, list[int], str]]:
    """Store the prefixes as the client does, and forks, an end and a pin beside them."""
    loaded = smollm.load()
    ids = conversation.prefix_ids(loaded.tokenizer)
    stored = []
    for name, tokens, vquant in PREFIXES:
        cache = PionPromptCache(loaded.model, vquant, port=port, background=False, lane="tcp")
        cache.get_or_prefill(ids[:tokens], name)
        stored.append((cache, ids[:tokens], name))
    client = redis.Redis(port=port)
    for command in (
        ("KV.PREFIX.FORK", "handbook:int8", "handbook:int8:chat-1", 900),
        ("KV.PREFIX.FORK", "handbook:int8", "handbook:int8:chat-2", 700),
        ("KV.PREFIX.PIN", "handbook:mlx4g32"),
        ("KV.PREFIX.EXPIRE", "handbook:short", 3600),
        ("KV.PREFIX.REGISTER", "handbook:unfinished", 192, "fp16"),
    ):
        client.execute_command(*command)
    return stored


def use(stored: list[tuple[PionPromptCache, list[int], str]], until: float) -> None:
    """Look prefixes up and restore those that are there, at an uneven pace."""
    turn = 0
    while time.monotonic() < until:
        turn += 1
        cache, ids, name = stored[turn % len(stored)]
        if cache.lookup(name) and turn % 3 == 0:
            cache.get_or_prefill(ids, name)
        if turn % 7 == 0:
            cache.lookup("handbook:2019")
        if turn % 11 == 0:
            cache.lookup("handbook:unfinished")
        time.sleep(PAUSE * (1 + turn // 40 % 3))


@contextmanager
def chromium(profile: Path) -> Iterator[str]:
    """A browser; the address of its debugger."""
    command = [*CHROMIUM, f"--user-data-dir={profile}", "about:blank"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if found := re.search(r"listening on ws://(\S+?)/", line):
                break
        else:
            raise RuntimeError("chromium did not start")
        try:
            yield f"http://{found[1]}"
        finally:
            process.terminate()


async def picture(debugger: str, url: str, work: Any) -> bytes:
    """Open the page, do the work, and take the picture."""
    async with aiohttp.ClientSession() as http:
        async with http.put(f"{debugger}/json/new?{url}") as answer:
            target = await answer.json()
        await asyncio.to_thread(work)
        async with http.ws_connect(target["webSocketDebuggerUrl"], max_msg_size=0) as tab:
            await tab.send_json(
                {"id": 1, "method": "Page.captureScreenshot", "params": {"captureBeyondViewport": True}}
            )
            answered = await tab.receive_json()
    return base64.b64decode(answered["result"]["data"])


def main(seconds: float) -> None:
    """Make the picture."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        server = ServerProcess(Path(folder) / "store", "--http-port", "0", "--max-bytes", BUDGET)
        server.start()
        stack.callback(server.stop)
        stored = fill(server.port)
        page = redis.Redis(port=server.port).info("server")["http_port"]
        debugger = stack.enter_context(chromium(Path(folder) / "browser"))
        until = time.monotonic() + seconds
        data = asyncio.run(picture(debugger, f"http://127.0.0.1:{page}/", lambda: use(stored, until)))
    PICTURE.write_bytes(data)


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 60.0)
