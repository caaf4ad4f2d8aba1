"""One process of the demonstration: it loads the model, restores the prefix or prefills it, and answers.

Run as `python -m pionkv.client.demo.worker`. It reads a `Job` as one line of JSON from standard input and
writes events, one JSON object a line, to standard output; the last is a result or a failure.
"""

import copy
import json
import sys
import time
from dataclasses import asdict, dataclass
from typing import Any

from pionkv.kernels.blas import preload_blas


@dataclass(frozen=True, slots=True)
class Job:
    """What a worker does.

    Attributes:
        port: The server's port on this machine.
        vquant: Format of the stored rows.
        namespace: Name of the prefix.
        questions: What to ask, one answer each.
        answer_tokens: The most tokens of an answer.
        system: The system prompt; the handbook when not given.
    """

    port: int
    vquant: str
    namespace: str
    questions: tuple[str, ...]
    answer_tokens: int
    system: str | None = None


@dataclass(frozen=True, slots=True)
class Result:
    """What a worker found.

    Attributes:
        restored: Whether the prefix came from the store.
        prefix_tokens: Tokens of the prefix.
        prefix_seconds: Until the caches held the prefix, without publishing it.
        first_token_seconds: From there to the first token of the first answer.
        publish_seconds: What publishing took.
        bytes_sent: Bytes that went to the server.
        bytes_received: Bytes that came from it, over the connection or out of its files.
        answers: Token ids of each answer.
        texts: The same as text.
        problem: Why the prefix was not restored, or not published; None when all went well.
    """

    restored: bool
    prefix_tokens: int
    prefix_seconds: float
    first_token_seconds: float
    publish_seconds: float
    bytes_sent: int
    bytes_received: int
    answers: list[list[int]]
    texts: list[str]
    problem: str | None

    @property
    def ttft(self) -> float:
        """Seconds to the first token."""
        return self.prefix_seconds + self.first_token_seconds


def run(job: Job) -> Result:
    """Do the job in this process; progress is written to standard output."""
    _tell("blas", note=preload_blas().note)
    # mlx is imported from here on: it has to find the BLAS that was loaded before.
    from ..prompt_cache import PionPromptCache
    from . import smollm
    from .conversation import prefix_ids, suffix_ids
    from .greedy import answer

    loaded = smollm.load()
    prefix = prefix_ids(loaded.tokenizer, job.system)
    suffixes = [suffix_ids(loaded.tokenizer, question, job.system) for question in job.questions]
    cache = PionPromptCache(loaded.model, job.vquant, port=job.port, background=False)
    _tell("loaded")
    begin = time.perf_counter()
    caches = cache.get_or_prefill(prefix, job.namespace, prompt_progress_callback=_tell_prefilled)
    seconds = time.perf_counter() - begin
    answers = []
    for suffix in suffixes:
        # Generation writes to its caches, and every answer starts from the prefix.
        own = copy.deepcopy(caches)
        answers.append(
            answer(loaded.model, own, suffix, tokens=job.answer_tokens, end=loaded.tokenizer.eos_id)
        )
        _tell("answered", done=len(answers), total=len(suffixes))
    stats: dict[str, Any] = cache.stats()
    cache.close()
    return Result(
        restored=stats["hits"] == 1,
        prefix_tokens=len(prefix),
        prefix_seconds=seconds - stats["store_ms_total"] / 1000,
        first_token_seconds=answers[0].first_seconds,
        publish_seconds=stats["store_ms_total"] / 1000,
        bytes_sent=stats["bytes_sent"],
        bytes_received=stats["bytes_received"] + stats["bytes_mapped"],
        answers=[each.tokens for each in answers],
        texts=[loaded.tokenizer.decode(each.tokens) for each in answers],
        problem=stats["last_unpublished"],
    )


def _tell(event: str, **details: object) -> None:
    print(json.dumps({"event": event, **details}), flush=True)


def _tell_prefilled(done: int, total: int) -> None:
    _tell("prefilled", done=done, total=total)


def main() -> None:
    """Read a job, do it, write the result."""
    job = Job(**json.loads(sys.stdin.readline()))
    try:
        result = run(job)
    except ModuleNotFoundError as error:
        _tell("failed", reason=f"{error}; install pionkv[mlx]")
    except RuntimeError as error:
        _tell("failed", reason=str(error))
    else:
        _tell("result", **asdict(result))


if __name__ == "__main__":
    main()
