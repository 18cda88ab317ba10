"""``python -m examples.home_security.web SUMMARIES``: show the homes in a browser, until Ctrl-C."""

from __future__ import annotations

import argparse
import contextlib
import sys

from examples.home_security.web.server import HomesServer


def main() -> None:
    """Serve until Ctrl-C."""
    parser = argparse.ArgumentParser(description="Show the homes in a browser of this machine.")
    parser.add_argument("summaries", help="where the pipeline writes them: a directory, or a URL of fsspec")
    parser.add_argument("--port", type=int, default=8080, help="0: any free one")
    given = parser.parse_args()
    with HomesServer(given.summaries, port=given.port) as server:
        sys.stderr.write(f"The homes are at {server.address}\n")
        with contextlib.suppress(KeyboardInterrupt):
            server.serve_forever()


if __name__ == "__main__":
    main()
