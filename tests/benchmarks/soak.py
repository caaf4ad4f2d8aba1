"""Soak: one prefix of 86,580 tokens in mlx4g32, stored through a real server, against what the disk says.

    python tests/benchmarks/soak.py [--layers N] [--tokens N] [--rounds N]

Each round stores the prefix in batches as a prefill would, publishes it, reads rows of it back from another
worker, and compares: the bytes accounted (INFO `stored_bytes`, V.LEDGER) with the blocks that the page files
take, which must agree within one percent; the workers' memory; and, after the drop, that nothing is left.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import redis

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1]))

from harness import RESULTS, commit, machine  # noqa: E402
from server_process import ServerProcess  # noqa: E402

TOKENS, DIM, FORMAT = 86_580, 1024, "mlx4g32"
BATCH = 2048
TOLERANCE = 0.01
SIDES = (b"soak_pk", b"soak_pv")


def blocks(folder: Path) -> int:
    """Bytes of disk that the page files take."""
    return sum(page.stat().st_blocks * 512 for page in (folder / "pages").iterdir())


def stored(client: redis.Redis) -> int:
    return int(client.info("pion")["stored_bytes"])


def anonymous(client: redis.Redis) -> int:
    return int(client.info("memory")["used_memory"])


def numbers(lines: bytes) -> dict[str, int]:
    """Lines of name:value."""
    pairs = (line.decode().split(":") for line in lines.split(b"\r\n") if line)
    return {name: int(value) for name, value in pairs}


def store(client: redis.Redis, tokens: int, layers: int, rows: np.ndarray) -> None:
    """Store every layer of both sides, batch after batch, as a prefill brings them."""
    client.execute_command("KV.PREFIX.REGISTER", "soak", DIM, FORMAT)
    for start in range(0, tokens, BATCH):
        count = min(BATCH, tokens - start)
        blob = rows[:count].tobytes()
        for layer in range(layers):
            for sid in SIDES:
                client.execute_command("V.STOREBATCH", sid, layer, start, count, blob, "FMT", "F16")


def measure(tokens: int, layers: int, rounds: int) -> list[dict[str, object]]:
    rows = np.random.default_rng(1).standard_normal((BATCH, DIM), np.float32).astype(np.float16)
    found: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory() as folder:
        server = ServerProcess(Path(folder) / "data", "--workers", "2", "--max-bytes", "32gb")
        server.start()
        try:
            for _ in range(rounds):
                found.append(one_round(server, tokens, layers, rows))
                print(json.dumps(found[-1]), flush=True)
            assert server.stop() == 0
        finally:
            server.close()
    return found


def one_round(server: ServerProcess, tokens: int, layers: int, rows: np.ndarray) -> dict[str, object]:
    with redis.Redis(port=server.port) as writer, redis.Redis(port=server.port) as reader:
        begun = time.monotonic()
        store(writer, tokens, layers, rows)
        seconds = time.monotonic() - begun
        assert reader.execute_command("KV.PREFIX.LOOKUP", "soak") == b"HIT"
        first = reader.execute_command("V.FETCH", SIDES[0], 0, "RANGE", 0, BATCH, "FMT", "RAW")
        for layer in range(layers):
            start = (tokens // BATCH // 2) * BATCH
            again = reader.execute_command(
                "V.FETCH", SIDES[1], layer, "RANGE", start, start + BATCH, "FMT", "RAW"
            )
            assert again == first, "every batch holds the same rows"
        accounted, real = stored(reader), blocks(server.data_dir)
        ledger = numbers(reader.execute_command("V.LEDGER", "soak"))
        logical = tokens * layers * 2 * len(first) // BATCH
        memory = anonymous(reader)
        writer.execute_command("KV.PREFIX.DROP", "soak")
        return {
            "tokens": tokens,
            "layers": layers,
            "logical_bytes": logical,
            "accounted_bytes": accounted,
            "ledger_bytes": ledger["physical_total"],
            "disk_bytes": real,
            "difference": round(
                max(abs(size - real) for size in (accounted, ledger["physical_total"])) / real, 5
            ),
            "anonymous_bytes": memory,
            "seconds": round(seconds, 1),
            "bytes_left_after_drop": stored(writer),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=TOKENS)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()
    found = measure(options.tokens, options.layers, options.rounds)
    result = {
        "command": "python tests/benchmarks/soak.py",
        "commit": commit(),
        "machine": machine(),
        "format": FORMAT,
        "kv_dim": DIM,
        "rounds": found,
    }
    (RESULTS / "soak.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    if any(one["difference"] > TOLERANCE or one["bytes_left_after_drop"] for one in found):  # type: ignore[operator]
        sys.exit("accounted and real bytes differ by more than one percent, or bytes are left after the drop")


if __name__ == "__main__":
    main()
