"""The key of an endpoint: read from the environment, sent in a header, and shown nowhere."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from kolb.errors import RecipeError

DEFAULT_ENV = "OPENAI_API_KEY"
HERE = ("localhost", "127.0.0.1", "::1", "0.0.0.0")
SCRUBBED = "[api key]"
SHORTEST = 8
"""Below this a key is a placeholder such as EMPTY: a word like any other, which answers may hold."""


@dataclass(frozen=True)
class Key:
    """``env`` names the variable; the value is empty where no key is sent. It is not in the repr."""

    env: str
    is_for_this_machine: bool = False
    value: str = field(default="", repr=False)

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.value}"} if self.value else {}

    @property
    def hint(self) -> str:
        if self.value:
            return f"Is the key in the environment variable {self.env} right, and allowed to use this model?"
        name = self.env or "MY_KEY"
        return (
            f"No key was sent: put it into an environment variable and name that under [engine], as in "
            f'api_key_env = "{name}"'
        )

    def scrubbed(self, text: str) -> str:
        """``text`` without the key, should a server repeat it."""
        return text.replace(self.value, SCRUBBED) if len(self.value) >= SHORTEST else text


def check_base_url(base_url: str) -> None:
    """RecipeError unless it is http(s)://HOST..., without a secret, a query or a fragment in it."""
    try:
        parts = urlsplit(base_url)
        is_address = parts.scheme in ("http", "https") and bool(parts.hostname)
        has_secret = "@" in parts.netloc
        _ = parts.port
    except ValueError:
        is_address = has_secret = False
        parts = urlsplit("")
    if has_secret:
        raise RecipeError(
            "engine: base_url holds a user or password, and a recipe is written to disk; put the key into an "
            "environment variable and name it by api_key_env"
        )
    if not is_address or parts.query or parts.fragment:
        raise RecipeError(
            f"engine: base_url = {base_url!r}; expected an address such as http://localhost:8000/v1"
        )


def read_key(base_url: str, env: str) -> Key:
    """The key from the environment. Without ``env`` it is that in OPENAI_API_KEY for https, and none for plain http:
    a key is not sent in the clear to a server that was not meant to have it.

    Raises RecipeError where the variable is not set, unless the server is on this machine.
    """
    parts = urlsplit(base_url)
    is_here = parts.hostname in HERE
    name = env or (DEFAULT_ENV if parts.scheme == "https" else "")
    value = os.environ.get(name, "").strip() if name else ""
    if name and not value and not is_here:
        raise RecipeError(
            f"engine: the environment variable {name} is not set, and {base_url} needs a key: `export {name}=...`, or "
            "name another variable by api_key_env under [engine]"
        )
    if not value.isascii() or not value.isprintable() or " " in value:
        raise RecipeError(
            f"engine: the environment variable {name} holds white space or other characters that no key has; was more "
            "than the key copied?"
        )
    return Key(name, is_here, value)
