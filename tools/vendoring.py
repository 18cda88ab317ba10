"""Updates the libraries that the console ships, from npm: ``make vendor``.

``static/vendor/vendor.json`` lists them: per package its version, npm's integrity hash (checked here) and the
files with their SHA-256 (checked by a test). To update a package, change its version there and run this.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any, Final

VENDOR_DIRECTORY: Final = Path(__file__).parents[1] / "src/tidegate/console/static/vendor"
MANIFEST: Final = VENDOR_DIRECTORY / "vendor.json"


def main() -> None:
    """Download each package of the manifest, extract its files, and record their hashes."""
    manifest: list[dict[str, Any]] = json.loads(MANIFEST.read_text(encoding="utf-8"))
    for package in manifest:
        archive = _fetch(package["name"], package["version"])
        integrity = "sha512-" + base64.b64encode(hashlib.sha512(archive).digest()).decode()
        known = _npm("view", f"{package['name']}@{package['version']}", "dist.integrity").strip()
        if integrity != known:
            sys.exit(f"{package['name']} {package['version']}: npm says {known}, what came is {integrity}")
        package["integrity"] = integrity
        with tarfile.open(fileobj=io.BytesIO(archive)) as members:
            for file in package["files"]:
                member = members.extractfile(f"package/{file['from']}")
                assert member is not None
                content = member.read()
                (VENDOR_DIRECTORY / file["file"]).write_bytes(content)
                file["sha256"] = hashlib.sha256(content).hexdigest()
    MANIFEST.write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")


def _fetch(name: str, version: str) -> bytes:
    with tempfile.TemporaryDirectory() as directory:
        _npm("pack", f"{name}@{version}", "--silent", "--pack-destination", directory)
        (archive,) = Path(directory).iterdir()
        return archive.read_bytes()


def _npm(*arguments: str) -> str:
    return subprocess.run(["npm", *arguments], check=True, capture_output=True, text=True).stdout


if __name__ == "__main__":
    main()
