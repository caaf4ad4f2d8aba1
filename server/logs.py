"""Structured logs on standard error. Passwords and row data are never given to a logger."""

from __future__ import annotations

import logging
import sys

import structlog


def configure(level: str, style: str, worker: int | None = None) -> None:
    """Set up structlog for the process.

    Args:
        level: One of `config.LOG_LEVELS`.
        style: One of `config.LOG_FORMATS`.
        worker: Named in every message, if there are several.
    """
    # Tracebacks never show local variables: a password could be among them.
    renderers: list[structlog.typing.Processor] = (
        [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
        if style == "json"
        else [
            structlog.dev.ConsoleRenderer(
                colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback
            )
        ]
    )

    def name_worker(_: object, __: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
        return event if worker is None else {**event, "worker": worker}

    structlog.configure(
        processors=[
            name_worker,
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            *renderers,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )


def logger() -> structlog.typing.FilteringBoundLogger:
    """The process's logger."""
    bound: structlog.typing.FilteringBoundLogger = structlog.get_logger()
    return bound
