"""Build the tokenizer and the training streams of the demo model.

    corpus.py texts      --manifest sources.json --root SOURCES --work WORK
    corpus.py tokenizer  --work WORK --out MODEL
    corpus.py pack       --work WORK --tokenizer MODEL

`texts` writes a file of documents for each stream (base: files as they are, chat and long: conversations derived from them, and what is
held out of both), `pack` turns each into a stream of uint16 token ids.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import fields
from functools import partial
from multiprocessing import Pool
from pathlib import Path
from typing import Annotated

import typer
from tokenizers import Tokenizer

import tokens
from documents import Documents, documents_of, small_chats
from sources import manifest

STREAMS = tuple(field.name for field in fields(Documents))

Folder = Annotated[Path, typer.Option()]
app = typer.Typer(add_completion=False, help=__doc__)


@app.command()
def texts(
    manifest_file: Annotated[Path, typer.Option("--manifest")], root: Folder, work: Folder, procs: int = 2, small: int = 25_000
) -> None:
    """Write the documents of all sources, and `small` conversations of small talk and exercises; sums.json counts them by source."""
    sources, sums = manifest(manifest_file), {}
    for stream in STREAMS:
        _file(work, stream).write_text("")
    with Pool(procs) as pool:
        for source, made in zip(sources, pool.imap(partial(documents_of, root=root), sources), strict=True):
            sums[source.name] = [len(made.base), sum(map(len, made.base)), len(made.chat), sum(map(len, made.chat))]
            for stream in STREAMS:
                _append(work, stream, getattr(made, stream))
    _append(work, "chat", small_chats(small))
    (work / "sums.json").write_text(json.dumps(sums, indent=1))


@app.command()
def tokenizer(work: Folder, out: Folder) -> None:
    """Train the tokenizer."""
    tokens.save_tokenizer(tokens.train_tokenizer(_documents(work, "base"), _documents(work, "chat")), out)


@app.command()
def pack(work: Folder, tokenizer: Folder) -> None:
    """Write the streams."""
    trained = Tokenizer.from_file(str(tokenizer / "tokenizer.json"))
    for stream in STREAMS:
        documents = _documents(work, stream)
        ids = tokens.pack(trained, documents)
        ids.tofile(work / f"{stream}.u16")
        print(f"{stream}: {len(documents)} documents, {len(ids)} tokens, {sum(map(len, documents)) / len(ids):.2f} characters a token")


def _file(work: Path, stream: str) -> Path:
    return work / f"{stream}.jsonl"


def _append(work: Path, stream: str, documents: Iterable[str]) -> None:
    with _file(work, stream).open("a") as file:
        file.writelines(json.dumps(document) + "\n" for document in documents)


def _documents(work: Path, stream: str) -> list[str]:
    with _file(work, stream).open() as file:
        return [json.loads(line) for line in file]


if __name__ == "__main__":
    app()
