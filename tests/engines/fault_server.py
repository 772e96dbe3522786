"""A local OpenAI-compatible server that answers, and fails, as it is told. It runs in a thread of its own."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Self

Json = dict[str, Any]


@dataclass(frozen=True)
class Reply:
    """``cut``: ``reset`` breaks the connection before an answer, ``body`` in the middle of one."""

    body: Any = None
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    delay_s: float = 0.0
    cut: str = ""


def said(text: str | None, request: Json | None = None, **message: Any) -> Json:
    """A good answer; usage counts a token per word."""
    prompt = json.dumps((request or {}).get("messages", (request or {}).get("prompt", "")))
    usage = {"prompt_tokens": len(prompt.split()), "completion_tokens": len((text or "").split())}
    choice = {"text": text} if "prompt" in (request or {}) else {}
    choice = choice or {"message": {"role": "assistant", "content": text, **message}}
    return {"choices": [{"index": 0, "finish_reason": "stop", **choice}], "usage": usage}


def babble(request: Json, number: int) -> Reply:
    """Different seeds, prompts and models say different things."""
    seen = request.get("messages") or request["prompt"]
    return Reply(said(f"{request.get('seed', 0) % 7} of {len(seen)}", request))


def in_turn(*replies: Reply) -> Callable[[Json, int], Reply]:
    """The first request gets the first reply, and so on; after the last all is well."""
    return lambda request, n: replies[n] if n < len(replies) else babble(request, n)


class FaultServer:
    """``answer(body, number)`` gives the Reply to the request of that number, from 0. A context manager.

    ``requests`` are (path, headers, body); ``most_at_once`` counts those under way; ``abandoned`` those whose
    client went away before the answer.
    """

    def __init__(self, answer: Callable[[Json, int], Reply] = babble) -> None:
        self.answer = answer
        self.requests: list[tuple[str, dict[str, str], Json]] = []
        self.at_once = self.most_at_once = self.abandoned = 0
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    @property
    def bodies(self) -> list[Json]:
        return [body for _, _, body in self.requests]

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10)

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._main())
        self._loop.close()

    async def _main(self) -> None:
        self._stop = asyncio.Event()
        server = await asyncio.start_server(self._client, "127.0.0.1", 0, backlog=512)
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        await self._stop.wait()
        server.close()
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        await asyncio.sleep(0)

    async def _client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await self._request(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    async def _request(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = {k.lower(): v for k, _, v in (line.partition(": ") for line in head[1:]) if k}
        body = json.loads(await reader.readexactly(int(headers["content-length"])))
        number = len(self.requests)
        self.requests.append((head[0].split()[1], headers, body))
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            reply = self.answer(body, number)
            if reply.delay_s and await self._went_away(reader, reply.delay_s):
                self.abandoned += 1
                return False
        finally:
            self.at_once -= 1
        return await self._reply(writer, reply)

    async def _went_away(self, reader: asyncio.StreamReader, seconds: float) -> bool:
        try:
            return await asyncio.wait_for(reader.read(1), seconds) == b""
        except TimeoutError:
            return False

    async def _reply(self, writer: asyncio.StreamWriter, reply: Reply) -> bool:
        if reply.cut == "reset":
            writer.transport.abort()
            return False
        content = reply.body if isinstance(reply.body, bytes) else json.dumps(reply.body).encode()
        headers = {"Content-Length": str(len(content)), **reply.headers}
        lines = [f"HTTP/1.1 {reply.status} Words", *(f"{k}: {v}" for k, v in headers.items())]
        writer.write("\r\n".join([*lines, "", ""]).encode())
        writer.write(content[: len(content) // 2] if reply.cut == "body" else content)
        await writer.drain()
        return reply.cut != "body"
