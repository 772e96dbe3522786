"""Answers on disk, by everything that decides about them: what was asked before costs nothing again."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kolb.engines.endpoint.answers import Answer, answer_from_json
from kolb.errors import RecipeError

VERSION = 1
"""Part of every key: raise it when the same request would be read into another Answer."""


@dataclass(frozen=True)
class RequestCache:
    """A file per request, in ``folder``. ``mode``: ``off``, ``on``, or ``read-only`` (nothing new is written).

    A file holds the request beside its answer, so that it can be looked at; never a key or a header. The
    names are hashes of url, body and seed, so another model, parameter, prompt or server is another file.
    """

    folder: Path
    mode: str = "off"

    def get(self, request: Mapping[str, Any]) -> Answer | None:
        """The answer to just this request; None where there is none, or its file is damaged."""
        if self.mode == "off":
            return None
        try:
            entry = json.loads(self._file(request).read_bytes())
            return answer_from_json(entry["answer"])
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def put(self, request: Mapping[str, Any], answer: Answer) -> None:
        """Keeps the answer. RecipeError where the folder cannot be written to."""
        if self.mode != "on":
            return
        try:
            self._write(self._file(request), request, answer)
        except OSError as error:
            raise RecipeError(
                f"engine: the cache in {self.folder} cannot be written ({error}); make room for it there, name "
                'another folder, or set cache = "read-only" or "off" under [engine]'
            ) from error

    def _write(self, path: Path, request: Mapping[str, Any], answer: Answer) -> None:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        # Written beside its place and renamed, so that a reader finds all of it or nothing.
        beside = path.with_name(f"{path.name}.tmp-{os.getpid()}")
        entry = {"version": VERSION, "request": request, "answer": answer.to_json()}
        beside.write_bytes(json.dumps(entry).encode())
        os.replace(beside, path)

    def _file(self, request: Mapping[str, Any]) -> Path:
        text = json.dumps({"version": VERSION, "request": request}, sort_keys=True)
        name = hashlib.sha256(text.encode()).hexdigest()
        return self.folder / name[:2] / f"{name}.json"
