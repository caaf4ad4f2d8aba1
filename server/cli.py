"""The command line: `pionkv serve`, `doctor`, `--version`, and the verbs that other folders bring."""

from __future__ import annotations

import inspect
import os
import sys
from importlib.metadata import entry_points, version
from pathlib import Path
from typing import Annotated, Any

import typer

from .config import SETTINGS, ConfigError, load
from .doctor import doctor

VERB_GROUP = "pionkv.verbs"
EXIT_USAGE = 2


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"pionkv {version('pionkv')}")
        raise typer.Exit()


def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """A networked store for the keys and values of language-model prefixes."""


def _serve(config: Path | None, print_config: bool, **flags: str | None) -> None:
    """Run the server until SIGTERM or SIGINT."""
    try:
        settings = load(flags, os.environ, config)
    except ConfigError as error:
        typer.echo(f"pionkv: {error}", err=True)
        raise typer.Exit(EXIT_USAGE) from error
    if print_config:
        for name, text in settings.printable().items():
            typer.echo(f"{name} = {text}")
        return
    # numba and lmdb are not needed for --help.
    if settings.workers > 1:
        from .supervisor import run
    else:
        from .app import run
    raise typer.Exit(run(settings))


def _serve_signature() -> inspect.Signature:
    """One option per setting, so that a setting is declared only in `config`."""
    keyword = inspect.Parameter.KEYWORD_ONLY
    file = typer.Option(None, "--config", help="TOML file of settings.", metavar="FILE")
    show = typer.Option(False, "--print-config", help="Print the settings in force and exit.")
    parameters = [
        inspect.Parameter("config", keyword, default=file, annotation=Path | None),
        inspect.Parameter("print_config", keyword, default=show, annotation=bool),
    ]
    for name, item in SETTINGS.items():
        help = f"{item.metadata['help']} [default: {'none' if item.default is None else item.default}]"
        option = typer.Option(None, f"--{name.replace('_', '-')}", help=help, metavar=name.upper())
        parameters.append(inspect.Parameter(name, keyword, default=option, annotation=str | None))
    return inspect.Signature(parameters)


def build(arguments: list[str]) -> typer.Typer:
    """Make the application; only the verb named in `arguments` is imported (all of them for help)."""
    app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
    app.callback()(_root)

    def serve(**given: Any) -> None:
        _serve(**given)

    serve.__doc__ = _serve.__doc__
    serve.__signature__ = signature = _serve_signature()  # type: ignore[attr-defined]
    serve.__annotations__ = {name: parameter.annotation for name, parameter in signature.parameters.items()}
    app.command("serve")(serve)
    app.command("doctor")(doctor)
    wanted = next((word for word in arguments if not word.startswith("-")), None)
    for verb in entry_points(group=VERB_GROUP):
        if wanted == verb.name or (wanted is None and "--version" not in arguments):
            _add(app, verb.name, verb.load())
    return app


def _add(app: typer.Typer, name: str, verb: Any) -> None:
    if isinstance(verb, typer.Typer):
        app.add_typer(verb, name=name)
    else:
        # A verb that passes options on to another program says so.
        app.command(name, context_settings=getattr(verb, "context_settings", None))(verb)


def main() -> None:
    """Entry point of the `pionkv` script."""
    build(sys.argv[1:])()
