"""The log's files stay small and private, and never fail a request."""

from __future__ import annotations

import logging
import shutil
import threading
from pathlib import Path

import pytest

from forerun.errors import ConfigError
from forerun.request_log.file import NUM_FILES, LogFile, read_lines


def test_lines_are_appended_across_openings(tmp_path: Path) -> None:
    path = tmp_path / "log" / "requests.jsonl"
    for line in ("{}", '{"100 %s": 1}'):
        log = LogFile(path, 1 << 20)
        log.append(line)
        log.close()
    assert path.read_text() == '{}\n{"100 %s": 1}\n'
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700


def test_all_files_are_rewritten_and_the_log_continues(tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    log = LogFile(path, 4 * 100)
    for number in range(20):
        log.append(f"secret {number:02} {'x' * 20}")
    assert sorted(each.name for each in tmp_path.iterdir())[1:] == [f"requests.jsonl.{number}" for number in range(1, NUM_FILES)]
    log.rewrite(lambda line: "" if "secret 19" in line else line.replace("secret", "gone"))
    log.append("after")
    log.close()
    assert not [each for each in tmp_path.iterdir() if "secret" in each.read_text() or each.stat().st_mode & 0o777 != 0o600]
    assert read_lines(path)[-2:] == [f"gone 18 {'x' * 20}", "after"]


def test_only_a_line_feed_ends_a_line(tmp_path: Path) -> None:
    path, lines = tmp_path / "requests.jsonl", ['"a\u2028b\x85c"', '"d"']
    log = LogFile(path, 1 << 20)
    for line in lines:
        log.append(line)
    log.close()
    assert read_lines(path) == lines


def test_a_truncated_line_affects_no_other(tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    path.write_bytes('"a"\n"é'.encode()[:-1] + b'\n"b"\n')
    assert read_lines(path) == ['"a"', '"\ufffd', '"b"']


def test_it_never_grows_beyond_its_limit_and_the_newest_stays(tmp_path: Path) -> None:
    log = LogFile(tmp_path / "requests.jsonl", 4000)
    for number in range(1000):
        log.append(f"{number:099d}")
        assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 4000
    log.close()
    files = sorted(tmp_path.iterdir(), reverse=True)
    assert len(files) == NUM_FILES
    lines = [int(line) for path in [*files[:-1], files[-1]] for line in path.read_text().splitlines()]
    assert lines == list(range(1000 - len(lines), 1000))
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in files)


def test_lines_of_many_threads_stay_whole(tmp_path: Path) -> None:
    log = LogFile(tmp_path / "requests.jsonl", 1 << 20)
    threads = [threading.Thread(target=lambda c=c: [log.append(c * 500) for _ in range(50)]) for c in "abcd"]  # type: ignore[misc]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    log.close()
    lines = (tmp_path / "requests.jsonl").read_text().splitlines()
    assert sorted(lines) == [c * 500 for c in "abcd" for _ in range(50)]


def test_a_failed_write_loses_the_line_only(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    log = LogFile(tmp_path / "log" / "requests.jsonl", 400)
    log.append("a" * 90)
    shutil.rmtree(tmp_path / "log")
    with caplog.at_level(logging.WARNING):
        log.append("b" * 90)
    assert caplog.messages[0].startswith("a line of the request log is lost: ")
    log.close()


def test_a_path_that_cannot_be_written_is_an_error_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"the request log cannot be written: .*file/requests\.jsonl") as caught:
        LogFile(tmp_path / "file" / "requests.jsonl", 400)
    assert "--request-log" in caught.value.hint
