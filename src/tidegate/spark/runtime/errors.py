"""Finds Tidegate's message in the exception that Spark makes from an error in a Python worker.

An error in a task reaches the driver as text in a Java stack trace in a query exception. One of its about one
hundred lines says what is wrong and what to do; ``explain`` returns that line.
"""

from __future__ import annotations

import re

from tidegate.model import errors
from tidegate.model.errors import TidegateError

# The last line of a Python traceback: a qualified exception name, a colon, the message. Tidegate's first,
# because another traceback may be the cause of ours or follow it.
_OUR_ERROR = re.compile(r"^[ \t]*(?:[\w.]+: )?tidegate(?:\.\w+)+\.(\w+): (\S.*)$", re.MULTILINE)
_ANY_ERROR = re.compile(
    r"^(?P<sentence>(?!org\.apache\.|java\.|scala\.|Traceback)(?:\w+\.)*\w*(?:Error|Exception|Exit|Interrupt)\b"
    r"(?:: .*)?)$",
    re.MULTILINE,
)
# Py4J's message for an exception that Spark did not convert for Python: its own text, then Java's.
_JAVA_ERROR = re.compile(
    r"\AAn error occurred while calling \S+\n: (?:[\w.$]+: )?(?P<sentence>\S.*)$", re.MULTILINE
)


def our_errors(text: str) -> list[tuple[str, str]]:
    """(class name, message) of each Tidegate error in Spark's message."""
    return [(name, sentence.strip()) for name, sentence in _OUR_ERROR.findall(text)]


def error_in(exception: BaseException) -> TidegateError | None:
    """The Tidegate error at the root of Spark's exception; None: it is another's."""
    if isinstance(exception, TidegateError):
        return exception
    name, sentence = (our_errors(str(exception)) or [("", "")])[-1]
    kind = getattr(errors, name, None)
    return kind(sentence) if isinstance(kind, type) and issubclass(kind, TidegateError) else None


def explain(exception: BaseException) -> str:
    """A sentence or two for the user: the message of a Tidegate error at the root, else Python's, else the
    first line of Spark's.
    """
    if isinstance(exception, TidegateError):
        return str(exception)
    text = str(exception)
    if ours := our_errors(text):
        return ours[-1][1]
    if anyones := _ANY_ERROR.findall(text):
        return str(anyones[-1]).strip()
    if (javas := _JAVA_ERROR.search(text)) is not None:
        return javas["sentence"].strip()
    return text.strip().partition("\n")[0].strip() or type(exception).__name__
