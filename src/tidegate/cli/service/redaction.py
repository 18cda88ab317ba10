"""Removes secrets from what leaves this machine: those that are known, and what has the form of one.

The rule: too much is removed rather than too little. A known secret is found in whatever way it is written:
plain, in a URL, or in a JSON string.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Final
from urllib.parse import parse_qsl, quote, quote_plus, unquote, urlsplit

REMOVED: Final = "[removed]"

_NAMES: Final = (
    r"(?:pass(?:word|wd|phrase)?|pwd|secret|token|signature|sig|credentials?"
    r"|(?:api|access|account|root|private)_?key)"
)
"""How the names of secrets end."""
_NAMED: Final = re.compile(rf"(?i){_NAMES}$")
_WHOLE_VALUE: Final = re.compile(rf"(?i)(?!pwd$)(?:.*_)?(?:key|{_NAMES})")
"""Variables whose whole value is a secret; PWD is the current directory."""
_PARTS_ONLY: Final = re.compile(r"(?i)connection_?str|database|url|uri|dsn|proxy")
"""Variables whose value contains one."""
_NO_SECRETS: Final = ("true", "false", "yes", "no", "none", "null")
_CHARACTERS_MIN: Final = 4
"""Shorter secrets are found only by their form (our choice: they are part of many words)."""
_EMBEDDED_MIN: Final = 12
"""Shorter ones are found only as whole words (our choice)."""

_URL_PART_MAX: Final = 512
"""Characters of a user, and of a password between two @, that are looked at: a log may hold a megabyte of ://."""
_PASSWORD: Final = rf"[^\s\"'<>@]{{1,{_URL_PART_MAX}}}+"

_WORDS: Final = "|".join(_NO_SECRETS)
_FORMS: Final[tuple[tuple[re.Pattern[str], str], ...]] = tuple(
    (re.compile(pattern, re.DOTALL), kept + REMOVED)
    for pattern, kept in (
        # Private keys, also those whose beginning or end is missing.
        (r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", ""),
        (r"\A(?:(?!-----BEGIN).)*?-----END [A-Z ]*PRIVATE KEY-----", ""),
        # Headers of HTTP, to the end of the line or of the string.
        (r"(?i)((?:authorization|cookie)[\\\"']*\s*[:=]\s*[\\\"']*)[^\r\n\"']+", r"\1"),
        (r"(?i)\b(tidegate-console[\w-]*=)[^\s;\"']+", r"\1"),
        (r"(?i)\b(bearer\s+)[\w.~+/=-]{6,}", r"\1"),
        # JSON Web Tokens: a JSON object in base64 begins so.
        (r"(?<![\w-])eyJ[\w-]{4,}\.[\w-]+(?:\.[\w-]*)*", ""),
        # scheme://user:password@host
        (rf"(://[^/\s:@\"'<>]{{0,{_URL_PART_MAX}}}+:){_PASSWORD}(?:@{_PASSWORD})*(?=@)", r"\1"),
        # password: "…", {\"client_secret\": \"…\"}
        (
            rf"(?i)({_NAMES}[\\\"']*\s*[=:]\s*(\\?[\"']))(?!(?:{_WORDS})\2)(?:(?!\2)(?:\\.|[^\r\n]))+",
            r"\1",
        ),
        # SharedAccessKey=…, AccountKey=…, &sig=…, password: …
        (rf"(?i)({_NAMES}[\\\"']*\s*[=:]\s*)(?![\"'\\]|(?:{_WORDS})\b)[^\s\"'&;]+", r"\1"),
    )
)


class Redaction:
    """Removes the known secrets and everything that looks like one."""

    def __init__(self, known: Iterable[str]) -> None:
        """known: secrets, in any order; those of fewer than 4 characters are ignored."""
        written = {
            form
            for secret in known
            if len(secret) >= _CHARACTERS_MIN and secret.lower() not in _NO_SECRETS
            for form in (secret, quote(secret, safe=""), quote(secret), quote_plus(secret), _in_json(secret))
        }
        # Longest first: one may be a part of another.
        found = [_pattern(each) for each in sorted(written, key=len, reverse=True)]
        self._known = re.compile("|".join(found)) if found else None

    def text(self, text: str) -> str:
        """``text`` without secrets."""
        if self._known is not None:
            text = self._known.sub(REMOVED, text)
        for pattern, replacement in _FORMS:
            text = pattern.sub(replacement, text)
        return text

    def value(self, value: object) -> object:
        """A JSON value, in which every string is without secrets."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {self.text(str(name)): self.value(each) for name, each in value.items()}
        return [self.value(each) for each in value] if isinstance(value, list | tuple) else value


def secrets_in(text: str) -> Iterator[str]:
    """The secrets in a connection string (of Event Hubs, of Azure Storage) or a URL."""
    for part in text.split(";"):
        name, _, value = part.partition("=")
        if _NAMED.search(name.strip()):
            yield value.strip()
            yield from re.findall(r"(?i)\bsig=([^&\s]+)", value)
    try:
        url = urlsplit(text)
        password = url.password
    except ValueError:
        return
    if password:
        yield from (password, unquote(password))
    yield from (value for name, value in parse_qsl(url.query) if _NAMED.search(name))


def secrets_of_environment(environment: Mapping[str, str]) -> Iterator[str]:
    """The secrets in variables whose names say that they hold one."""
    for name, value in environment.items():
        if _PARTS_ONLY.search(name):
            yield from secrets_in(value)
        elif _WHOLE_VALUE.fullmatch(name):
            yield value


def _in_json(secret: str) -> str:
    return json.dumps(secret)[1:-1]


def _pattern(secret: str) -> str:
    found = re.escape(secret)
    return found if len(secret) >= _EMBEDDED_MIN else rf"(?<!\w){found}(?!\w)"
