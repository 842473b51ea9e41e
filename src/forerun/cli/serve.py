"""`forerun serve`: from settings to a listening server, and its orderly shutdown at a signal.

Knows uvicorn and the terminal. The engine is imported last, since MLX needs a prepared process.
"""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import math
import os
import resource
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
import uvicorn
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from starlette.applications import Starlette

from forerun import log
from forerun.config import Config, format_bytes, load, prepare
from forerun.errors import ForerunError
from forerun.serve.app import build
from forerun.serve.auth import keys_for
from forerun.serve.http_protocol import Protocol, evict

if TYPE_CHECKING:
    from forerun.engine.engine import Engine

logger = logging.getLogger(__name__)
CLOSE_LIMIT_S = 20.0
RETRY_S = 1.0  # how long asyncio waits after it could not accept a connection
# Longer, so that an answer that the engine cuts off still gets its last frames out.
DRAIN_LIMIT_S = 23
KEEP_ALIVE_SLACK_S = 1  # longer than announced: a request that is sent at the last moment still finds the connection open
FILE_LIMIT = 8192  # macOS allows no process more than 10,240
BACKLOG = 2048  # connections that may wait to be accepted
ACCEPTS = 16  # a tick of the loop. If no file descriptor is left, Python 3.11 fails so often, and retries once for each failure


def described(field: str) -> str:
    """A setting's description, and its default unless that is None or False."""
    setting = Config.model_fields[field]
    if setting.default is None or setting.default is False:
        return f"{setting.description}"
    default = format_bytes(setting.default) if field.endswith("_bytes") else setting.default
    return f"{setting.description}; default {default}"


def option(field: str) -> Any:
    """A typer option for a setting. Unset options are left to the configuration file, the environment and the defaults."""
    switch = [f"--{field.replace('_', '-')}"] if Config.model_fields[field].default is False else []  # without a --no- form
    return typer.Option(*switch, help=described(field), show_default=False)


def serve(
    model: Annotated[str | None, typer.Argument(metavar="MODEL", help=described("model"), show_default=False)] = None,
    host: Annotated[str | None, option("host")] = None,
    port: Annotated[int | None, option("port")] = None,
    bank_dir: Annotated[Path | None, option("bank_dir")] = None,
    bank_ram_bytes: Annotated[str | None, option("bank_ram_bytes")] = None,
    bank_disk_bytes: Annotated[str | None, option("bank_disk_bytes")] = None,
    bank_daily_write_bytes: Annotated[str | None, option("bank_daily_write_bytes")] = None,
    context: Annotated[int | None, option("context")] = None,
    max_running: Annotated[int | None, option("max_running")] = None,
    draft_depth: Annotated[str | None, option("draft_depth")] = None,
    decode_layout: Annotated[str | None, option("decode_layout")] = None,
    max_thinking_tokens: Annotated[int | None, option("max_thinking_tokens")] = None,
    enforce_calls: Annotated[bool | None, option("enforce_calls")] = None,
    break_loops: Annotated[bool | None, option("break_loops")] = None,
    eager: Annotated[bool | None, option("eager")] = None,
    api_key_file: Annotated[Path | None, option("api_key_file")] = None,
    archive_key_file: Annotated[Path | None, option("archive_key_file")] = None,
    requests_per_minute: Annotated[int | None, option("requests_per_minute")] = None,
    allowed_hosts: Annotated[str | None, option("allowed_hosts")] = None,
    cors_origins: Annotated[str | None, option("cors_origins")] = None,
    keep_alive_s: Annotated[int | None, option("keep_alive_s")] = None,
    log_format: Annotated[str | None, option("log_format")] = None,
    request_log: Annotated[Path | None, option("request_log")] = None,
    request_log_bytes: Annotated[str | None, option("request_log_bytes")] = None,
    request_log_content: Annotated[bool | None, option("request_log_content")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print the start-up line as one JSON object")] = False,
) -> None:
    """Serve a model to agents on this machine (OpenAI-style HTTP).

    The first SIGINT, SIGTERM or SIGHUP ends it in order, a second SIGINT or SIGTERM at once.
    """
    given = {name: value for name, value in locals().items() if name != "as_json"}
    serve_as(load(given), json.dumps if as_json else sentence)


def serve_as(config: Config, formatted: Callable[[dict[str, Any]], str]) -> None:
    """Serve with these settings until a signal. The start-up line is printed, `formatted`, once requests are answered."""
    keys = keys_for(config)
    prepare(config)
    raise_file_limit()
    log.set_up(config.log_format)
    listener = listen(config.host, config.port)
    engine = started(config)
    app = build(
        engine,
        keys=keys,
        host=config.host,
        allowed_hosts=config.allowed_hosts or (),
        origins=config.cors_origins or (),
        requests_per_minute=config.requests_per_minute,
    )
    line = startup(config, engine, listener)

    def announce() -> None:
        engine.announce(line["url"])
        typer.echo(formatted(line))

    asyncio.run(run(engine, app, listener, announce, keep_alive_s=config.keep_alive_s))
    if engine.failure:
        raise ForerunError(engine.failure, hint="this is a defect: report it with the log above, and start the server again")


def started(config: Config) -> Engine:
    """The engine of these settings, ready. MLX is imported here, no earlier."""
    from forerun.engine.start import start

    with loading_bar() as progress:
        return start(config, progress)


async def run(engine: Engine, app: Starlette, listener: socket.socket, announce: Callable[[], None], *, keep_alive_s: int) -> None:
    """Answer requests on `listener` until a signal; `announce` is called once they are answered."""
    settings: dict[str, Any] = {"log_config": None, "access_log": False, "timeout_graceful_shutdown": DRAIN_LIMIT_S}
    settings |= {"timeout_keep_alive": keep_alive_s + KEEP_ALIVE_SLACK_S, "headers": [("Keep-Alive", f"timeout={keep_alive_s}")]}
    await Server(uvicorn.Config(app, http=Protocol, ws="none", backlog=ACCEPTS, **settings), engine, announce).serve([listener])


class Server(uvicorn.Server):
    """uvicorn that announces itself, closes the engine while it drains its connections, and exits with code 0 after a signal."""

    _out_of_files_s = -math.inf  # when the file descriptors last ran out

    def __init__(self, config: uvicorn.Config, engine: Engine, announce: Callable[[], None]) -> None:
        super().__init__(config)
        self._engine = engine
        self._announce = announce

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        asyncio.get_running_loop().set_exception_handler(self._handle_exception)
        await super().startup(sockets)
        for listener in sockets or ():
            listener.listen(BACKLOG)  # uvicorn's backlog is asyncio's number of accepts, too
        self._announce()

    async def on_tick(self, counter: int) -> bool:
        return await super().on_tick(counter) or bool(self._engine.failure)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        # Concurrently: responses under way end only when the engine finishes them or cuts them off.
        await asyncio.gather(super().shutdown(sockets), self._engine.close(CLOSE_LIMIT_S))
        logger.info("stopped")

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._stop)
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as under nohup
            loop.add_signal_handler(signal.SIGHUP, self._hang_up)
        yield

    def _handle_exception(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Log an exception that nothing caught. If no file descriptor is left for a connection, log it at most once a minute, and evict.

        asyncio accepts again after RETRY_S.
        """
        error = context.get("exception")
        if not isinstance(error, OSError) or error.errno not in (errno.EMFILE, errno.ENFILE):
            loop.default_exception_handler(context)
            return
        since_s, self._out_of_files_s = loop.time() - self._out_of_files_s, loop.time()
        if since_s > RETRY_S / 2:
            evict(self.server_state.connections, 0)
        if since_s > 60.0:
            logger.error("no file descriptor is left for another connection (%s): raise `ulimit -n`", error.strerror)

    def _hang_up(self) -> None:
        """Stop. A terminal that closes may send the signal twice, so a second one changes nothing."""
        if not self.should_exit:
            self._stop()

    def _stop(self) -> None:
        if self.should_exit:
            os._exit(1)
        self.should_exit = True
        logger.info("stopping: requests have %.0f s to end, a second signal ends all at once", CLOSE_LIMIT_S)


def listen(host: str, port: int) -> socket.socket:
    """A listening socket, for `::` of both address families. Raises ForerunError.

    Requests that arrive while the model loads wait instead of failing.
    """
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(address[:2], family=family, dualstack_ipv6=address[0] == "::" and socket.has_dualstack_ipv6())
    except OSError as error:
        in_use = "it is taken", "another server may be running; `--port 0` takes a free port"
        reason, hint = in_use if error.errno == errno.EADDRINUSE else (error.strerror, "see --host and --port")
        raise ForerunError(f"cannot listen on {host}:{port}: {reason}", hint=hint) from error


def raise_file_limit() -> None:
    """Raise the soft limit of open files to FILE_LIMIT, or to the hard limit if that is lower. A connection takes one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILE_LIMIT if hard == resource.RLIM_INFINITY else min(FILE_LIMIT, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


@contextmanager
def loading_bar() -> Iterator[Callable[[str, float], None]]:
    """A function to call with the current step and its progress (0 to 1); drawn only on a terminal."""
    console = Console(stderr=True)
    with Progress(TextColumn("{task.description}"), BarColumn(), console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("starting", total=1.0)
        yield lambda step, done_frac: bar.update(task, description=step, completed=done_frac)


def startup(config: Config, engine: Engine, listener: socket.socket) -> dict[str, Any]:
    """The start-up line: what people and programs need to know about a server that has just started."""
    info, facts = engine.info, ("family", "demo", "notes", "device", "numerics", "kernels", "context_tokens")
    host = f"[{config.host}]" if ":" in config.host else config.host
    return {
        "url": f"http://{host}:{listener.getsockname()[1]}",
        "pid": os.getpid(),
        "model": info.name,
        **{name: getattr(info, name) for name in facts},
        "bank_dir": str(config.bank_path) if config.bank_disk_bytes != 0 else None,
    }


def sentence(line: dict[str, Any]) -> str:
    """The start-up line for people, without the notes on weights, which `/v1/models` has."""
    trial = " (bundled, for trying things out)" if line["demo"] else ""
    bank = f"bank {line['bank_dir']}" if line["bank_dir"] else "nothing stored on disk"
    parts = (
        f"{line['model']}{trial}",
        line["device"],
        f"{line['numerics']} numerics",
        f"kernels {line['kernels']}",
        bank,
        f"{line['url']}/v1",
    )
    return "forerun: " + " · ".join(parts)
