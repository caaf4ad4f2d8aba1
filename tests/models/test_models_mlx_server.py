"""mlx-lm's HTTP server on a real model: a second process restores what the first one prefilled."""

from __future__ import annotations

from pathlib import Path

import pytest
from http_server import HttpServer, cached
from pionkv.client.demo import smollm
from pionkv.client.demo.conversation import questions

pytestmark = pytest.mark.timeout(600)


def test_the_same_answer_after_a_restart(store_port: int, short_prompt: str, tmp_path: Path) -> None:
    folder = smollm.save(tmp_path / "smollm2")
    messages = [
        {"role": "system", "content": short_prompt},
        {"role": "user", "content": questions()[0]},
    ]
    answers = []
    for known in (False, True):
        server = HttpServer(folder, f"redis://127.0.0.1:{store_port}")
        try:
            text, usage = server.chat(messages, max_tokens=16)
            assert (cached(usage) > 0) is known
            answers.append(text)
            if known:
                assert cached(usage) == usage["prompt_tokens"] - 1
                streamed, usage = server.stream(
                    [messages[0], {"role": "user", "content": "Who?"}], max_tokens=4
                )
                assert streamed and 0 < cached(usage) < usage["prompt_tokens"] - 1
            assert server.close() == 0
        finally:
            server.kill()
    assert answers[0] == answers[1] != ""
