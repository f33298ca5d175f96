"""A model behind the OpenAI chat API (`POST /chat/completions`), whoever serves it.

Sends one conversation and gives the text of the answer. Tries again where that can help, and says
what is wrong where it cannot. Keeps nothing: what was answered is `infra.rewriting`'s to remember.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import httpx

RETRIED = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})
MISCONFIGURED = frozenset({401, 403, 404})
FIRST_PAUSE_SECONDS = 0.5
MAX_PAUSE_SECONDS = 30.0


class EndpointError(RuntimeError):
    """The endpoint cannot be used at all. The message says why and what to do."""


class Unanswered(RuntimeError):
    """Every attempt at one question failed; another day may do."""


class Declined(RuntimeError):
    """The endpoint will not answer this question (a filter, too long): asking again is no use."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Endpoint:
    url: str
    """Up to `/v1`."""
    model: str
    api_key: str | None = field(default=None, repr=False)
    max_attempts: int = 5
    timeout_seconds: float = 120.0


def open_client(endpoint: Endpoint, *, in_flight: int) -> httpx.AsyncClient:
    """A client with as many connections as questions are asked at once."""
    headers = {"Authorization": f"Bearer {endpoint.api_key}"} if endpoint.api_key else {}
    return httpx.AsyncClient(
        base_url=endpoint.url.rstrip("/"),
        headers=headers,
        timeout=endpoint.timeout_seconds,
        limits=httpx.Limits(max_connections=in_flight),
        trust_env=False,
    )


async def complete(
    client: httpx.AsyncClient, endpoint: Endpoint, messages: Sequence[Mapping[str, str]]
) -> str:
    """The answer's text. Raises `Unanswered`, `Declined` or `EndpointError`."""
    body = {"model": endpoint.model, "messages": list(messages)}
    reason = ""
    for attempt in range(1, endpoint.max_attempts + 1):
        asked_to_wait = ""
        try:
            response = await client.post("/chat/completions", json=body)
        except httpx.TransportError as error:
            reason = f"{type(error).__name__} {error}".strip()
        else:
            if response.status_code not in RETRIED:
                return _answer(endpoint, response)
            reason = f"HTTP {response.status_code}"
            asked_to_wait = response.headers.get("retry-after", "")
        if attempt < endpoint.max_attempts:
            await asyncio.sleep(_pause(attempt, asked_to_wait))
    raise Unanswered(f"{reason} after {endpoint.max_attempts} attempts")


def _pause(attempt: int, asked_to_wait: str) -> float:
    """Twice as long each time; as long as the server asks, where it does."""
    try:
        seconds = float(asked_to_wait)
    except ValueError:  # nothing, or a date
        seconds = FIRST_PAUSE_SECONDS * 2.0 ** (attempt - 1)
    return min(max(seconds, 0.0), MAX_PAUSE_SECONDS)


def _answer(endpoint: Endpoint, response: httpx.Response) -> str:
    if response.status_code in MISCONFIGURED:
        raise EndpointError(
            f"{endpoint.url} answers HTTP {response.status_code} for the model {endpoint.model!r}: "
            f"{response.text[:200]!r}; expected an endpoint up to /v1 that serves it, and its key in "
            "OPENAI_API_KEY"
        )
    if response.is_client_error:
        raise Declined(f"HTTP {response.status_code}")
    try:
        text = response.json()["choices"][0]["message"]["content"]
    except (ValueError, KeyError, IndexError, TypeError):
        raise EndpointError(
            f"{endpoint.url} answers {response.text[:200]!r}: expected the OpenAI chat API; give the "
            "address up to /v1"
        ) from None
    if not isinstance(text, str):
        raise Declined("no text in the answer")
    return text
