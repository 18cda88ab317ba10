"""``python -m examples.home_security.web SUMMARIES``: show the homes in a browser, until Ctrl-C."""

from __future__ import annotations

import argparse
import contextlib
import sys
from pathlib import Path

from examples.home_security.web.keys import Keys
from examples.home_security.web.server import HomesServer


def main() -> None:
    """Serve until Ctrl-C."""
    parser = argparse.ArgumentParser(description="Show the homes in a browser of this machine.")
    parser.add_argument("summaries", help="where the pipeline writes them: a directory, or a URL of fsspec")
    parser.add_argument("--port", type=int, default=8080, help="0: any free one")
    parser.add_argument(
        "--key-file",
        type=Path,
        default=Path("homes.key"),
        help="the secret of the pages' addresses, created if it is missing (default: %(default)s)",
    )
    given = parser.parse_args()
    with HomesServer(given.summaries, Keys.of_file(given.key_file), port=given.port) as server:
        sys.stderr.write(f"All homes, for the operator: {server.list_address}\n")
        with contextlib.suppress(KeyboardInterrupt):
            server.serve_forever()


if __name__ == "__main__":
    main()
