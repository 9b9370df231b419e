"""Options of the server that a judge runs on: its addresses, its key, and how it is asked."""

from __future__ import annotations

import re
from functools import partial
from itertools import starmap
from typing import Self
from urllib.parse import parse_qsl, urlsplit

from pydantic import model_validator

from encore.core.config import StageConfig, option
from encore.core.errors import JudgeUnavailableError

http_option = partial(option, group="Judge over HTTP")

_HEADER_NAME, _HEADER_VALUE = re.compile(r"[A-Za-z0-9_-]+"), re.compile(r"ENV:[A-Za-z_]\w*")

#: Parts of the names of parameters that hold secrets: api-key, subscriptionKey, access_token, sig.
_SECRET_WORDS = frozenset(
    {
        *("key", "apikey", "token", "accesstoken", "sig", "signature", "secret", "password"),
        *("pass", "passwd", "pwd", "auth", "authorization", "credential", "credentials", "jwt"),
        *("sas", "bearer", "session", "code"),
    }
)
_SECRET_VALUE = re.compile(r"(sk|pk|rk|hf|gsk|xai|ghp|eyJ)[-_A-Za-z0-9.]{16,}|[0-9a-fA-F]{32,}")


def _secret_parameter(name: str, value: str) -> str | None:
    """Return the name of a URL's parameter that looks like a secret, else None.

    The name itself may be the secret; it is not shown then.
    """
    name_parts = re.findall(r"[A-Z]?[a-z]+|[A-Z]+", name)
    if _SECRET_VALUE.fullmatch(name):
        return "without a name"
    is_secret = _SECRET_WORDS.intersection([name.lower(), *map(str.lower, name_parts)])
    return repr(name) if is_secret or _SECRET_VALUE.fullmatch(value) else None


class ServerOptions(StageConfig):
    """Server of a judge over HTTP, and how it is asked. It changes no reply, so it is in no key.

    Where the judge has no revision, the server's host stands for one in the judge's identity.
    """

    base_url: str | None = http_option(
        None, metavar="URL", examples=["http://127.0.0.1:8000/v1", "https://api.openai.com/v1"]
    )
    """Address of the server or its router, or several with commas between them, which share the
    work. Texts are sent there. Parameters such as ?api-version=2024-10-21 are sent with every
    request."""
    concurrency: int = http_option(64, ge=1, le=4096)
    """Maximal number of simultaneous requests."""
    request_timeout_seconds: float = http_option(120, gt=0)
    """Time limit of a request in seconds, from the connection to the end of the answer."""
    wait_for_server: float = http_option(0, ge=0, metavar="MINUTES")
    """Wait so long for a server that is away: it takes no connection, or answers 502, 503 or 504.
    0: do not wait."""
    api_key_env: str = http_option("OPENAI_API_KEY", min_length=1, metavar="NAME")
    """Environment variable that holds the server's key, if it needs one."""
    headers: dict[str, str] = http_option(dict, name="header", metavar="NAME=ENV:VARIABLE")
    """Sends a header whose value is read from an environment variable; repeatable."""

    @property
    def base_urls(self) -> tuple[str, ...]:
        """Return the addresses of the servers."""
        urls = map(str.strip, re.split(r",\s*(?=https?:|$)", self.base_url or ""))
        return tuple(dict.fromkeys(url for url in urls if url))

    @property
    def host(self) -> str:
        """Return the host that texts are sent to, or the hosts, separated by commas."""
        hosts = (str(urlsplit(url).hostname) for url in self.base_urls)
        return ", ".join(dict.fromkeys(hosts))

    @model_validator(mode="after")
    def _hides_its_key(self) -> Self:
        # No ValueError, and neither name nor value in the message: a secret may be in either.
        if not self.api_key_env.isidentifier():
            raise JudgeUnavailableError(
                "--api-key-env is not the name of an environment variable; give the name, not the "
                "key"
            )
        for name, value in self.headers.items():
            if not (_HEADER_NAME.fullmatch(name) and _HEADER_VALUE.fullmatch(value)):
                raise JudgeUnavailableError(
                    "--header: expected NAME=ENV:VARIABLE, e.g. X-Api-Key=ENV:GATEWAY_KEY; the "
                    "value is read from the environment variable and given nowhere else"
                )
        return self

    @model_validator(mode="after")
    def _has_addresses(self) -> Self:
        if self.base_url is not None and not self.base_urls:
            raise ValueError(f"--base-url {self.base_url!r}: expected http://HOST:PORT/v1")
        for url in self.base_urls:
            self._check_address(url)
        return self

    def _check_address(self, address: str) -> None:
        """Refuse an address that is none, or that holds a secret."""
        url = urlsplit(address)
        if "@" in url.netloc or url.fragment:
            raise JudgeUnavailableError(
                "--base-url has a user, a password or a part after # in it; a key is read from the "
                f"environment variable {self.api_key_env} only: put it there, and give the plain "
                "URL such as https://host/v1"
            )
        parameters = parse_qsl(url.query, keep_blank_values=True)
        if secret := next(filter(None, starmap(_secret_parameter, parameters)), None):
            raise JudgeUnavailableError(
                f"--base-url: its parameter {secret} looks like a key, which is read from the "
                f"environment variable {self.api_key_env}, or sent as a header: --header "
                "NAME=ENV:VARIABLE; leave the parameter out"
            )
        if url.scheme not in ("http", "https") or not url.hostname or "," in url.netloc + url.path:
            raise ValueError(f"--base-url {address!r}: expected http://HOST:PORT/v1")
