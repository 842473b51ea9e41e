"""Which addresses are this machine's own, and the proxies that the environment names. Opens no connection."""

from __future__ import annotations

from ipaddress import ip_address
from urllib.request import getproxies

import httpx

from forerun.errors import ForerunError

PROXY_HINT = "name it as http://host:port in HTTP_PROXY, HTTPS_PROXY or ALL_PROXY, or exempt an address in NO_PROXY"


def is_loopback(host: str) -> bool:
    """Whether a server at this address is reachable from this machine alone."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host.lower().removesuffix(".") == "localhost"


def uses_proxy(url: str) -> bool:
    """Whether a request to this URL goes through a proxy if the environment names one: never to this machine itself.

    Raises httpx.InvalidURL; ForerunError if the proxy cannot be used.
    """
    host = httpx.URL(url).host
    if is_loopback(host) or host in ("0.0.0.0", "::"):
        return False
    check_proxies()
    return True


def check_proxies() -> None:
    """Raises ForerunError if the environment names a proxy that cannot be used."""
    try:
        httpx.Client().close()
    except ImportError as error:
        raise ForerunError("the environment names a SOCKS proxy, which is not supported", hint=PROXY_HINT) from error
    except (ValueError, httpx.InvalidURL) as error:
        raise ForerunError(f"the environment names a proxy that cannot be used: {error}", hint=PROXY_HINT) from error


def proxies() -> str:
    """The proxies that the environment names, without their passwords: for a hint. "" if there are none."""
    named = [f"{scheme}_proxy = {url.rpartition('@')[2]}" for scheme, url in sorted(getproxies().items()) if scheme != "no"]
    return f"the environment names a proxy: {', '.join(named)}" if named else ""
