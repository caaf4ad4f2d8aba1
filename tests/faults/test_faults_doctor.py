"""pionkv doctor beside a server whose prefixes are replaced, dropped and published all the time."""

from __future__ import annotations

from faults_killing import Actor, Tally
from pionkv.server.doctor import examined

LOOKS = 8


def test_the_doctor_mistakes_no_change_for_damage(start_server) -> None:
    server = start_server("--workers", "2")
    tally = Tally()
    writers = [Actor(tally, "writer", server.port, 1000 + number) for number in (0, 1)]
    try:
        for _ in range(LOOKS):
            tally.wait("done", tally.counts["done"] + 10)
            report = examined(server.data_dir, mend=False)
            assert report["state"] == "running" and report["findings"] == []
            assert report["counts"]["bytes checked"] > 0
        assert [writer.finish() for writer in writers] == [0, 0] and not tally.wrong
    finally:
        for writer in writers:
            if writer.process.poll() is None:
                writer.kill()
