"""The verb `mlx-server`: mlx-lm's OpenAI server, with a prompt cache that outlives it."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import typer
from pionkv.kernels.formats import format_by_name

from .command_line import end
from .endpoint import DEFAULT_PORT, Endpoint
from .plan import AUTO

PASSED_ON = {"allow_extra_args": True, "ignore_unknown_options": True}


def mlx_server(
    context: typer.Context,
    store: Annotated[
        str,
        typer.Option(envvar="PIONKV_URL", help="Where prompts are stored: redis://, rediss:// or unix://."),
    ] = f"redis://127.0.0.1:{DEFAULT_PORT}",
    store_password: Annotated[
        str | None, typer.Option(envvar="PIONKV_PASSWORD", help="Its password, if the address has none.")
    ] = None,
    store_format: Annotated[
        str, typer.Option(help="Format of the stored rows; auto restores the same bits.")
    ] = AUTO,
    store_deadline: Annotated[
        float, typer.Option(help="Seconds that a restore, or a publication, may take in all.", min=0.01)
    ] = 10.0,
    store_wait: Annotated[
        float,
        typer.Option(
            help="Seconds that a prompt waits, at most, for another request or server that computes it.",
            min=0,
        ),
    ] = 60.0,
) -> None:
    """Run mlx-lm's OpenAI server; its prompt cache is kept in a store, outlives it and is shared.

    All other options are those of mlx_lm.server and go to it, such as --model, --host and --port (of HTTP);
    `pionkv mlx-server -- --help` lists them.
    """
    from pionkv.kernels.blas import preload_blas

    try:
        if store_format.lower() != AUTO:
            format_by_name(store_format)
        endpoint = Endpoint.from_url(store)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    if endpoint.password is None:
        endpoint = replace(endpoint, password=store_password)
    # Before mlx is imported: it has to find the BLAS that was loaded first.
    preload_blas()
    try:
        from .mlx_server import SeamMoved, serve
    except ModuleNotFoundError as error:
        end(f"{error}; install pionkv[mlx]")
    except (AttributeError, ImportError) as error:
        end(f"this version of mlx-lm has another server than this knows: {error}")
    try:
        options = {"vquant": store_format, "deadline": store_deadline, "wait_for_others": store_wait}
        serve(context.args, endpoint, options)
    except SeamMoved as error:
        end(str(error))


mlx_server.context_settings = PASSED_ON  # type: ignore[attr-defined]
