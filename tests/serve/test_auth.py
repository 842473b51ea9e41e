from pathlib import Path

import pytest
from starlette.datastructures import Headers

from forerun.config import Config, load
from forerun.errors import ConfigError, UnauthorisedError
from forerun.serve import auth
from forerun.serve.auth import keys_for, read_keys, tenant_of

KEYS = {"ann": "key-a", "bob": "schlüssel"}


@pytest.mark.parametrize("headers", [{"authorization": "Bearer key-a"}, {"authorization": "bearer  key-a "}, {"x-api-key": "key-a"}])
def test_a_key_names_its_owner(headers: dict[str, str]) -> None:
    assert tenant_of(Headers(headers), KEYS) == "ann"


def test_a_key_may_have_any_letters() -> None:
    sent = [(b"x-api-key", "schlüssel".encode())]
    assert tenant_of(Headers(raw=sent), KEYS) == "bob"


@pytest.mark.parametrize(
    "headers", [{}, {"authorization": "Bearer "}, {"authorization": "Basic key-a"}, {"x-api-key": "key-"}, {"x-api-key": "ann"}]
)
def test_no_key_or_another_is_refused(headers: dict[str, str]) -> None:
    with pytest.raises(UnauthorisedError):
        tenant_of(Headers(headers), KEYS)


def test_without_keys_there_is_one_tenant() -> None:
    assert tenant_of(Headers({"authorization": "Bearer whatever"}), {}) == ""


def test_each_key_is_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[int] = []
    real = auth.compare_digest
    monkeypatch.setattr(auth, "compare_digest", lambda a, b: compared.append(len(a) - len(b)) or real(a, b))
    tenant_of(Headers({"x-api-key": "key-a"}), KEYS)
    assert compared == [0, 0]


def test_a_keys_file(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("# owners\n\nann: key:with:colons \nbob:b\n")
    assert read_keys(file) == {"ann": "key:with:colons", "bob": "b"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ann\n", "line 1"),
        ("ann:secret\n:secret2", "line 2"),
        ("a:secret\na:secret2", "twice"),
        ("a:secret\nb:secret", "twice"),
        ("", "no API key"),
    ],
)
def test_a_malformed_keys_file_is_refused_without_naming_its_keys(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "keys"
    file.write_text(text)
    with pytest.raises(ConfigError, match=message) as caught:
        read_keys(file)
    assert "secret" not in str(caught.value)


def test_a_missing_keys_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read"):
        read_keys(tmp_path / "keys")


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "box.example", "localhost.example"])
def test_other_machines_need_a_key(host: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="API key"):
        keys_for(Config(host=host))
    (tmp_path / "keys").write_text("ann:a")
    assert keys_for(Config(host=host, api_key_file=tmp_path / "keys")) == {"ann": "a"}


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "::1", "localhost"])
def test_loopback_needs_no_key(host: str) -> None:
    assert keys_for(Config(host=host)) == {}


def test_a_key_of_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FORERUN_API_KEY", "secret")
    config = load({"host": "0.0.0.0"})
    assert keys_for(config) == {"api-key": "secret"}
    assert "secret" not in repr(config)
    file = tmp_path / "keys"
    file.write_text("ann:other\n")
    assert keys_for(load({"api_key_file": file})) == {"ann": "other", "api-key": "secret"}
    file.write_text("ann:secret\n")
    with pytest.raises(ConfigError, match="twice"):
        keys_for(load({"api_key_file": file}))
