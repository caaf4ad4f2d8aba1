"""`pionkv mlx-server` as a process, and what is asked of it over HTTP."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

START_SECONDS = 120
READY = "Starting httpd"


class HttpServer:
    """A server on a free port; its log is read all the time."""

    def __init__(self, model: Path, store: str, *flags: str) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = int(free.getsockname()[1])
        self.log: list[str] = []
        self._grown = threading.Condition()
        self._ready = threading.Event()
        self._process = subprocess.Popen(
            [
                str(Path(sys.executable).with_name("pionkv")), "mlx-server", "--store", store,
                "--model", str(model), "--port", str(self.port), *flags,
            ],
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
            env={**os.environ, "HF_HUB_OFFLINE": "1"},
        )  # fmt: skip
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        assert self._ready.wait(START_SECONDS) and self._process.poll() is None, "".join(self.log)

    def _read(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            with self._grown:
                self.log.append(line)
                self._grown.notify_all()
            if READY in line:
                self._ready.set()
        self._ready.set()

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_for_line(self, text: str) -> None:
        """Until its log has a line with a text."""
        with self._grown:
            assert self._grown.wait_for(lambda: any(text in line for line in self.log), START_SECONDS)

    def post(self, path: str, **body: Any) -> str:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=START_SECONDS)
        try:
            connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
            reply = connection.getresponse()
            text = reply.read().decode()
            assert reply.status == 200, text
            return text
        finally:
            connection.close()

    def chat(self, messages: list[dict[str, str]], **options: Any) -> tuple[str, dict[str, Any]]:
        """The answer, and the usage that is reported with it."""
        found = json.loads(self.post("/v1/chat/completions", messages=messages, **options))
        return found["choices"][0]["message"]["content"], found["usage"]

    def stream(self, messages: list[dict[str, str]], **options: Any) -> tuple[str, dict[str, Any]]:
        """Likewise, as it comes."""
        usage = {"stream": True, "stream_options": {"include_usage": True}}
        lines = self.post("/v1/chat/completions", messages=messages, **usage, **options).splitlines()
        data = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
        assert data.pop() == "[DONE]"
        events = [json.loads(each) for each in data]
        deltas = [choice["delta"].get("content", "") for event in events for choice in event["choices"]]
        return "".join(deltas), events[-1]["usage"]

    def close(self) -> int:
        """Its exit status after SIGTERM."""
        self._process.send_signal(signal.SIGTERM)
        status = self._process.wait(START_SECONDS)
        self._reader.join()
        return status

    def kill(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        self._reader.join()


def cached(usage: dict[str, Any]) -> int:
    return int(usage["prompt_tokens_details"]["cached_tokens"])
