"""What JavaScript's AMQP library finds in events that hide annotations, or that a client cannot decode."""

from __future__ import annotations

import json
import shutil
import subprocess

from tests.interop.node import FOLDER
from tests.support.absent import not_tested
from tests.wire.hiding import EVENTS, delivered
from tests.wire.undecodable import UNDECODABLE

_PROGRAM = """
const { message } = require("rhea");
const events = JSON.parse(require("fs").readFileSync(0));
const names = ["x-opt-sequence-number", "x-opt-offset", "x-opt-publisher", "x-opt-partition-key"];
console.log(JSON.stringify(events.map((event) => {
    const found = message.decode(Buffer.from(event, "base64")).message_annotations;
    return names.map((name) => found[name] ?? null);
})));
"""


def test_javascripts_library_reads_the_services_annotations() -> None:
    """Protects receivers whose decoder reads symbols by seven bits and lists by their count."""
    import base64

    if shutil.which("node") is None or not (FOLDER / "node_modules" / "rhea").exists():
        not_tested("NOT TESTED WITH RHEA: install Node.js and run `make npm`.")
    events = EVENTS | UNDECODABLE
    sent = json.dumps([base64.b64encode(delivered(event)).decode() for event in events.values()])
    done = subprocess.run(
        ["node", "-e", _PROGRAM], cwd=FOLDER, input=sent, capture_output=True, text=True, check=True
    )
    found = dict(zip(events, json.loads(done.stdout), strict=True))
    assert found == {name: [5, "5", None, None] for name in events}
