"""Writes a software bill of materials (CycloneDX, JSON) of everything that Tidegate may run: ``make sbom``.

``cyclonedx-py`` reads the packages from PyPI in requirements.lock; those that the console ships from npm are
added from ``vendor.json``. Development-only packages have the scope "excluded". The same inputs give the same
file. The run fails if a package of either list is missing or has no hash.
"""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from tools.floors import LOCK_FILE, PROJECT_FILE, ROOT
from tools.lock import ENTRY, PROJECT, asked_by, closure

VENDOR_FILE: Final = ROOT / "src/tidegate/console/static/vendor/vendor.json"

Component = dict[str, Any]


def main(path: Path) -> None:
    """Write and check the bill of materials. Exits with a message if it is incomplete."""
    command = [sys.executable, "-W", "ignore", "-m", "cyclonedx_py", "requirements", str(LOCK_FILE)]
    options = ["--pyproject", str(PROJECT_FILE), "--output-format", "JSON", "--output-reproducible"]
    made = subprocess.run([*command, *options], check=True, capture_output=True, text=True)
    lock = LOCK_FILE.read_text(encoding="utf-8")
    manifest = json.loads(VENDOR_FILE.read_text(encoding="utf-8"))
    bom = completed(json.loads(made.stdout), lock, manifest)
    if missing := missing_in(bom, lock, manifest):
        sys.exit("The bill of materials is not complete:\n" + "\n".join(missing))
    text = json.dumps(bom, indent=2) + "\n"
    _validate(text)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    print(f"Written: {path}, {len(bom['components'])} components.")


def completed(bom: Mapping[str, Any], lock: str, manifest: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The output of ``cyclonedx-py`` with scopes and npm's packages, without descriptions."""
    development = development_only(lock)
    components = [
        {key: value for key, value in component.items() if key != "description"}
        | {"scope": "excluded" if component["name"] in development else "required"}
        for component in bom["components"]
    ]
    return {**bom, "components": [*components, *map(npm_component, manifest)]}


def npm_component(package: Mapping[str, Any]) -> Component:
    """A package of ``vendor.json``: the archive's hash from npm, and the files that are shipped."""
    algorithm, _, digest = package["integrity"].partition("-")
    assert algorithm == "sha512"
    purl = f"pkg:npm/{package['name']}@{package['version']}"
    return {
        "type": "library",
        "bom-ref": purl,
        "name": package["name"],
        "version": package["version"],
        "purl": purl,
        "scope": "required",
        "licenses": [{"license": {"id": package["license"]}}],
        "hashes": [{"alg": "SHA-512", "content": base64.b64decode(digest).hex()}],
        "components": [
            {
                "type": "file",
                "bom-ref": f"{purl}#{file['file']}",
                "name": file["file"],
                "hashes": [{"alg": "SHA-256", "content": file["sha256"]}],
            }
            for file in package["files"]
        ],
    }


def development_only(lock: str) -> set[str]:
    """The packages that no installation has, by the lock file's comments on what requires each."""
    asked = asked_by(lock)
    return set(asked) - closure(asked, [PROJECT])


def missing_in(bom: Mapping[str, Any], lock: str, manifest: Sequence[Mapping[str, Any]]) -> list[str]:
    """Each package of the lock file or the manifest that is missing, or differs in version or hashes."""
    found = {
        component["purl"]
        for component in bom["components"]
        if _hashes(component) and component.get("version")
    }
    wanted = {f"pkg:pypi/{entry['name']}@{entry['version']}" for entry in ENTRY.finditer(lock)}
    wanted |= {f"pkg:npm/{package['name']}@{package['version']}" for package in manifest}
    return sorted(wanted - found)


def _hashes(component: Mapping[str, Any]) -> list[object]:
    references = component.get("externalReferences", [])
    return [*component.get("hashes", []), *(each for place in references for each in place.get("hashes", []))]


def _validate(text: str) -> None:
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    version = SchemaVersion.from_version(json.loads(text)["specVersion"])
    if (error := JsonStrictValidator(version).validate_str(text)) is not None:
        sys.exit(f"The bill of materials is not CycloneDX: {error}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
