"""One typed Config and the only reader of the environment. Order: default < file < environment < command line.

Also sets the environment that MLX reads when it is imported: the folder for compiled kernels (`prepare`).
Does not import MLX itself: `import forerun.config` is cheap.
"""

from __future__ import annotations

import os
import platform
import re
import tomllib
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, SecretStr, ValidationError

from forerun.errors import ConfigError, ForerunError

ENV_PREFIX = "FORERUN_"
DEFAULT = "default"
KEY_BYTES, KEY_HINT = 16, "such as `openssl rand -hex 32` writes"
UNIT_BYTES = {"": 1, "B": 1} | {f"{p}{s}": b**i for s, b in (("B", 1000), ("iB", 1024)) for i, p in enumerate("KMGT", start=1)}


def parse_bytes(size: object) -> object:
    """Bytes of "2GiB", "500 MB" or "1048576" (KB is 1,000, KiB 1,024); a non-string is returned unchanged. Raises ValueError."""
    if not isinstance(size, str):
        return size
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)", size.strip())
    units = {name.lower(): num_bytes for name, num_bytes in UNIT_BYTES.items()}
    if match is None or match[2].lower() not in units:
        raise ValueError("not a size in bytes; write 2GiB, 500MB or a plain number")
    return int(float(match[1]) * units[match[2].lower()])


def format_bytes(num_bytes: int) -> str:
    """The shortest string that `parse_bytes` turns into num_bytes: "2GiB" for 2147483648."""
    whole = [f"{num_bytes // unit}{name}" for name, unit in UNIT_BYTES.items() if num_bytes and num_bytes % unit == 0]
    return min(whole, key=len, default="0")


Bytes = Annotated[int, BeforeValidator(parse_bytes)]


def parse_list(items: object) -> object:
    """The comma-separated items of a string; a non-string is returned unchanged."""
    return [each.strip() for each in items.split(",") if each.strip()] if isinstance(items, str) else items


def parse_origin(origin: str) -> str:
    """An origin as browsers send it: lower case, without a slash at its end or the scheme's own port. Raises ValueError."""
    lower = origin.lower().removesuffix("/")
    if lower == "*":
        raise ValueError("'*' would let every web page use the model and the stored conversations; name the origins")
    if not (match := ORIGIN.fullmatch(lower)):
        raise ValueError(f"{origin!r} is not an origin; write scheme://host or scheme://host:port")
    return lower.removesuffix(f":{OWN_PORTS[match[1]]}") if match[1] in OWN_PORTS else lower


def parse_host(host: str) -> str:
    """A host's name or address in lower case, or `*.suffix`. Raises ValueError."""
    name = host.lower().removeprefix("[").removesuffix("]").removesuffix(".")
    if name == "*":
        raise ValueError("'*' would let every web page reach the server under a name of its own; name the hosts, or require API keys")
    if not HOST.fullmatch(name):
        raise ValueError(f"{host!r} is not a host's name; write llm.example or *.example, without scheme and port")
    return name


ORIGIN = re.compile(r"([a-z][a-z0-9+.-]*)://(?:\[[0-9a-f:.]+\]|[^\[\]:/?#@*,\s]+)(?::\d+)?")
OWN_PORTS = {"http": 80, "https": 443}
HOST = re.compile(r"(?:\*\.)?[a-z0-9_-]+(?:\.[a-z0-9_-]+)*|(?:[0-9a-f]*:){2,}[0-9a-f.]*")
Origins = Annotated[tuple[Annotated[str, AfterValidator(parse_origin)], ...], BeforeValidator(parse_list)]
Hosts = Annotated[tuple[Annotated[str, AfterValidator(parse_host)], ...], BeforeValidator(parse_list)]


class Config(BaseModel):
    """All settings. A field is a flag (`--bank-dir`), a key of the file (`bank_dir`) and an environment variable (FORERUN_BANK_DIR)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: str | None = Field(None, description="model folder, or name of a pulled model; default: the bundled demo model")
    host: str = Field("127.0.0.1", description="address to listen on; anything but loopback needs an API key")
    port: int = Field(8484, ge=0, le=65535, description="port to listen on; 0 picks a free one")
    bank_dir: Path | None = Field(None, description="folder of stored conversations; default: in the user's cache folder")
    bank_ram_bytes: Bytes = Field(2 << 30, ge=0, description="bytes of RAM for conversations, such as 2GiB or 500MB")
    bank_disk_bytes: Bytes | None = Field(
        None, ge=0, description="bytes of disk for conversations; default: min(20 GiB, 10 % of the free disk); 0 stores nothing on disk"
    )
    bank_daily_write_bytes: Bytes | None = Field(
        None, ge=0, description="bytes that may be written to the bank in a day (UTC); default: min(200 GiB, half of the free disk)"
    )
    context: int | None = Field(
        None,
        ge=16,
        description="longest prompt plus answer, in tokens; default: the model's context, or as much of it as fits into memory",
    )
    max_running: int | None = Field(
        None, ge=1, le=64, description="requests that run at once, memory permitting; the others wait; default: 8 on a CPU, 16 on a GPU"
    )
    draft_depth: Literal["auto"] | Annotated[int, Field(ge=0, le=7)] = Field(
        "auto", union_mode="left_to_right", description="tokens drafted per round: 0 (never) to 7, or auto: the fastest, up to 3"
    )
    decode_layout: Literal["auto", "contiguous", "paged"] = Field(
        "auto",
        description="layout of a cache while decoding; auto: paged on CUDA; else contiguous up to 131,072 tokens or what memory allows",
    )
    max_thinking_tokens: int | None = Field(
        None, ge=0, description="most tokens of reasoning before an answer, then it is closed; requests may ask for less; default: no limit"
    )
    enforce_calls: bool = Field(
        True, description="hold calls to the declared tools and their schemas, also where the model may choose whether to call"
    )
    break_loops: bool = Field(False, description="end answers that repeat the same text again and again")
    eager: bool = Field(False, description="do not compile decoding steps")
    api_key_file: Path | None = Field(None, description="file with one `name:key` per line; requests must then carry one of the keys")
    api_key: SecretStr | None = Field(
        None, min_length=1, description="one more API key besides the file's; no flag, since other users could see its value"
    )
    archive_key_file: Path | None = Field(
        None, description="file with a secret that signs conversation archives; archives signed with it may carry state, which is trusted"
    )
    requests_per_minute: int | None = Field(None, ge=1, description="requests per minute that each API key may send; default: no limit")
    allowed_hosts: Hosts | None = Field(
        None,
        description="further host names that requests may use, comma-separated, *.suffix for all below a suffix; "
        "default: this machine's own; with API keys, any",
    )
    cors_origins: Origins | None = Field(
        None, description="origins of web pages and apps that may use the API, as scheme://host:port, comma-separated; default: none"
    )
    keep_alive_s: int = Field(75, ge=1, description="seconds for which a connection stays open between two requests")
    log_format: Literal["text", "json"] = Field("text", description="format of the log on stderr: text for people, json for programs")
    request_log: Path | None = Field(
        None, description="file of the request log, one JSON line per request; default: requests.jsonl in the user's state folder"
    )
    request_log_bytes: Bytes = Field(64 << 20, ge=0, description="size limit of the request log, rotated files included; 0: no log")
    request_log_content: bool = Field(False, description="log prompts and answers too")

    @property
    def bank_path(self) -> Path:
        """Folder of stored conversations."""
        return self.bank_dir if self.bank_dir is not None else cache_home() / "bank"

    @property
    def sent_key(self) -> str:
        """The API key that commands send to a server, "" for none."""
        return self.api_key.get_secret_value() if self.api_key else ""

    @property
    def archive_key(self) -> bytes:
        """The secret that signs archives, b"" for none. Raises ConfigError: the file cannot be read, or is too short."""
        if self.archive_key_file is None:
            return b""
        try:
            key = self.archive_key_file.read_bytes().strip()
        except OSError as error:
            raise ConfigError(f"cannot read {self.archive_key_file}: {error.strerror}", hint="see archive_key_file") from error
        if len(key) < KEY_BYTES:
            raise ConfigError(f"{self.archive_key_file} holds {len(key)} bytes, a key needs at least {KEY_BYTES}", hint=KEY_HINT)
        return key

    @property
    def request_log_path(self) -> Path:
        """File of the request log."""
        return self.request_log if self.request_log is not None else state_home() / "requests.jsonl"


def home() -> Path:
    """The user's home folder. Raises ConfigError if there is none."""
    if (found := _home()) is None:
        xdg = "" if platform.system() == "Darwin" else ", or XDG_CACHE_HOME and XDG_STATE_HOME"
        hint = f"set HOME{xdg} to a folder that this user may write"
        raise ConfigError("this user has no home folder: HOME is not set, and the list of users has no entry", hint=hint)
    return found


def _home() -> Path | None:
    """None if there is none: in a container, a user need not be in the list of users."""
    try:
        return Path.home()
    except RuntimeError:
        return None


def state_home() -> Path:
    """Folder for logs ($XDG_STATE_HOME/forerun, ~/Library/Logs/forerun on macOS)."""
    if platform.system() == "Darwin":
        return home() / "Library" / "Logs" / "forerun"
    return Path(os.environ.get("XDG_STATE_HOME") or home() / ".local" / "state") / "forerun"


def cache_home() -> Path:
    """Folder for the bank and other caches ($XDG_CACHE_HOME/forerun, ~/Library/Caches/forerun on macOS)."""
    if platform.system() == "Darwin":
        return home() / "Library" / "Caches" / "forerun"
    return Path(os.environ.get("XDG_CACHE_HOME") or home() / ".cache") / "forerun"


def config_file() -> Path:
    """The settings file, read if it exists ($FORERUN_CONFIG, else ~/.config/forerun/config.toml; without a home, none)."""
    chosen, own = os.environ.get(ENV_PREFIX + "CONFIG"), _home()
    folder = os.environ.get("XDG_CONFIG_HOME") or (own / ".config" if own else "")
    return Path(chosen) if chosen else Path(folder) / "forerun" / "config.toml" if folder else Path(os.devnull)


def load(flags: dict[str, Any]) -> Config:
    """The Config from defaults, file, environment and `flags` (None: not given), the later wins. Raises ConfigError naming the origin."""
    return resolve(flags)[0]


def resolve(flags: dict[str, Any]) -> tuple[Config, dict[str, str]]:
    """The Config as `load` returns it, and the origin of each value. Raises ConfigError."""
    merged, origin = dict[str, Any](), dict[str, str]()
    for source, values in (
        (str(config_file()), _from_file(config_file())),
        ("environment", _from_environment()),
        ("command line", {k: v for k, v in flags.items() if v is not None}),
    ):
        for key, value in values.items():
            _check_key(key, source)
            merged[key], origin[key] = value, source
    try:
        return Config(**merged), {key: origin.get(key, DEFAULT) for key in Config.model_fields}
    except ValidationError as error:
        key = str(error.errors()[0]["loc"][0])
        messages = [e["msg"].removeprefix("Value error, ") for e in error.errors() if e["loc"][0] == key]
        raise ConfigError(
            f"{key} = {merged.get(key)!r} (from {origin.get(key, DEFAULT)}): {'; or: '.join(messages)}",
            hint=Config.model_fields[key].description or "",
        ) from error


def prepare(config: Config) -> None:
    """Make a private folder for compiled kernels and name it in the environment. Call once per process, before `import mlx.core`.

    Raises ForerunError if the folder cannot be written.
    """
    folder = cache_home() / "tmp"
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        folder.chmod(0o700)
    except OSError as error:
        raise ForerunError(
            f"cannot write {folder}: {error}", hint="make it writable, or name another folder with XDG_CACHE_HOME (HOME on macOS)"
        ) from error
    os.environ["TMPDIR"] = str(folder)


def environ_without_settings() -> dict[str, str]:
    """The environment for a child process without the user's settings file and FORERUN_ variables."""
    return {key: value for key, value in os.environ.items() if not key.startswith(ENV_PREFIX)} | {ENV_PREFIX + "CONFIG": os.devnull}


def _from_file(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text())
    except FileNotFoundError:
        return {}
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
        raise ConfigError(f"cannot read {path}: {error}", hint="it must be TOML, one `key = value` per line") from error


def _from_environment() -> dict[str, Any]:
    names = {key[len(ENV_PREFIX) :].lower(): value for key, value in os.environ.items() if key.startswith(ENV_PREFIX)}
    names.pop("config", None)
    return names


def _check_key(key: str, source: str) -> None:
    if key in Config.model_fields:
        return
    near = get_close_matches(key, Config.model_fields, n=1)
    hint = f"did you mean {near[0]!r}?" if near else "see `forerun config show`"
    raise ConfigError(f"unknown setting {key!r} (from {source})", hint=hint)
