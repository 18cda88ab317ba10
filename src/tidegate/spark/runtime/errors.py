"""Finds our own sentence in the exception that Spark makes of an error in a Python worker.

An error raised in a task reaches the driver as text inside a Java stack trace inside a query exception. The
sentence that says what is wrong and what to do is one line of some hundred; ``explain`` is that line.
"""

from __future__ import annotations

import re

from tidegate.model.errors import TidegateError

# The last line of a Python traceback: a qualified exception name, a colon, the message. Ours first, because a
# traceback of theirs may be the cause of ours or stand after it.
_OUR_ERROR = re.compile(r"^\s*(?:[\w.]+: )?tidegate(?:\.\w+)+\.\w+: (?P<sentence>\S.*)$", re.MULTILINE)
_ANY_ERROR = re.compile(
    r"^(?P<sentence>(?!org\.apache\.|java\.|scala\.|Traceback)(?:\w+\.)*\w*(?:Error|Exception|Exit|Interrupt)\b"
    r"(?:: .*)?)$",
    re.MULTILINE,
)
# What Py4J says of an exception that Spark did not dress up for Python: its own words, then Java's.
_JAVA_ERROR = re.compile(
    r"\AAn error occurred while calling \S+\n: (?:[\w.$]+: )?(?P<sentence>\S.*)$", re.MULTILINE
)


def explain(exception: BaseException) -> str:
    """One sentence or two for the user: ours where an error of Tidegate is at the root, else Python's, else
    the first line of what Spark says.
    """
    if isinstance(exception, TidegateError):
        return str(exception)
    text = str(exception)
    ours = _OUR_ERROR.findall(text)
    if ours:
        return str(ours[-1]).strip()
    anyones = _ANY_ERROR.findall(text)
    if anyones:
        return str(anyones[-1]).strip()
    javas = _JAVA_ERROR.search(text)
    if javas is not None:
        return javas["sentence"].strip()
    first_line = text.strip().partition("\n")[0].strip()
    return first_line or type(exception).__name__
