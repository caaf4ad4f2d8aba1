"""`pionkv demo`: one process prefills a long prompt, another restores it, and their answers are compared."""

from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn

from ..prompt_cache import PionPromptCache
from ..signals import ended_by_sigterm
from .conversation import handbook, questions
from .processes import ProcessFailed, run_worker, running_server
from .report import Comparison, answers, figures
from .worker import Job, Result

FORMATS = ("fp16", "mlx4g32")
SHOWN = (3, 10, 7)
"""Questions asked unless all are: the model is small and answers two of these well, the third at length."""


def demo(
    all_questions: Annotated[bool, typer.Option("--all-questions", help="Ask all 20 questions.")] = False,
    answer_tokens: Annotated[int, typer.Option(help="The most tokens of an answer.", min=1)] = 48,
) -> None:
    """Prefill in one process, restore in another, compare the answers. Leaves nothing behind."""
    console = Console()
    asked = questions() if all_questions else tuple(questions()[index] for index in SHOWN)
    try:
        with ended_by_sigterm(), _progress(console) as progress, running_server() as port:
            comparisons = [_compare(progress, port, vquant, asked, answer_tokens) for vquant in FORMATS]
    except ProcessFailed as error:
        console.print(str(error), style="red", markup=False)
        raise typer.Exit(1) from error
    except KeyboardInterrupt:
        console.print("stopped")
        raise typer.Exit(130) from None
    console.print(figures(comparisons))
    for index, question in enumerate(asked):
        console.print(answers(question, index, comparisons))


def _compare(
    progress: Progress, port: int, vquant: str, asked: tuple[str, ...], answer_tokens: int
) -> Comparison:
    namespace = PionPromptCache.make_namespace("demo", vquant, handbook())
    job = Job(port, vquant, namespace, asked, answer_tokens)
    cold = _run(progress, f"{vquant}: process A prefills and publishes", job)
    warm = _run(progress, f"{vquant}: process B restores", job)
    for result, wanted in ((cold, False), (warm, True)):
        if result.restored is not wanted or result.problem is not None:
            raise ProcessFailed(f"{vquant}: {result.problem or 'the prefix was not where it should be'}")
    return Comparison(vquant, cold, warm)


def _run(progress: Progress, title: str, job: Job) -> Result:
    task = progress.add_task(title, total=None, step="loading the model")

    def listen(event: dict[str, Any]) -> None:
        match event["event"]:
            case "blas":
                progress.update(task, step=f"loading the model; {event['note']}")
            case "loaded":
                progress.update(task, step="asking the store")
            case "prefilled":
                step = f"prefilled {event['done']} of {event['total']} tokens"
                progress.update(task, step=step, completed=event["done"], total=event["total"])
            case "answered":
                step = f"answered {event['done']} of {event['total']} questions"
                progress.update(task, step=step, completed=event["done"], total=event["total"])

    result = run_worker(job, listen)
    progress.update(task, step=f"first token after {result.ttft:.2f} s", completed=1, total=1)
    return result


def _progress(console: Console) -> Progress:
    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[step]}"),
        console=console,
    )
