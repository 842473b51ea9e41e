"""API keys, and the tenant that each stands for: the owner of stored conversations. Knows the keys file and two headers; knows no route."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from hmac import compare_digest
from pathlib import Path

from starlette.datastructures import Headers

from forerun.config import Config
from forerun.errors import ConfigError, UnauthorisedError
from forerun.network import is_loopback

NO_TENANT = ""
ENVIRONMENT_TENANT = "api-key"  # of the key in FORERUN_API_KEY, which has no name


def keys_for(config: Config) -> dict[str, str]:
    """Keys by tenant, {} if none are required. Raises ConfigError: the file is malformed, or other machines would need no key."""
    keys = {} if config.api_key_file is None else read_keys(config.api_key_file)
    if config.api_key is not None:
        _check_key(ENVIRONMENT_TENANT, config.api_key.get_secret_value(), keys, "api_key")
        keys[ENVIRONMENT_TENANT] = config.api_key.get_secret_value()
    if not keys and not is_loopback(config.host):
        raise ConfigError(
            f"host = {config.host!r} can be reached from other machines, so an API key is needed",
            hint="give --api-key-file FILE with one `name:key` a line or set FORERUN_API_KEY, or listen on 127.0.0.1",
        )
    return keys


def read_keys(path: Path) -> dict[str, str]:
    """Keys by tenant, from a file with one `name:key` a line; skips blank lines and # lines. Raises ConfigError without any key."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} holds no API keys: {error}", hint="one `name:key` a line, in UTF-8") from error
    except OSError as error:
        raise ConfigError(f"cannot read the API keys in {path}: {error.strerror}", hint="see --api-key-file") from error
    keys: dict[str, str] = {}
    for number, line in enumerate(lines, start=1):
        if line.strip() and not line.startswith("#"):
            name, key = map(str.strip, line.partition(":")[::2])
            _check_key(name, key, keys, f"{path}, line {number}")
            keys[name] = key
    if not keys:
        raise ConfigError(f"{path} holds no API key", hint="one `name:key` a line")
    return keys


def tenant_of(headers: Headers, keys: Mapping[str, str]) -> str:
    """The tenant of a request's key, NO_TENANT if no keys are required. Raises UnauthorisedError."""
    if not keys:
        return NO_TENANT
    digest = sha256(_sent_key(headers).encode("latin-1")).digest()
    # Every key is compared, in constant time: how long a refusal takes reveals nothing about any of them.
    names = [name for name, key in keys.items() if compare_digest(digest, sha256(key.encode()).digest())]
    if not names:
        raise UnauthorisedError("API key missing or wrong", hint="send `Authorization: Bearer KEY` or `x-api-key: KEY`")
    return names[0]


def _sent_key(headers: Headers) -> str:
    scheme, _, key = headers.get("authorization", "").partition(" ")
    return key.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")


def _check_key(name: str, key: str, keys: Mapping[str, str], where: str) -> None:
    if not name or not key:
        raise ConfigError(f"{where}: neither name nor key may be empty", hint="one `name:key` a line")
    if name in keys or key in keys.values():
        raise ConfigError(f"{where}: the name {name!r} or its key occurs twice", hint="each name has one key, each key one name")
