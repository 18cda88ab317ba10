"""The OpenAPI 3.1 document of the administration, generated from the table of its operations."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from tidegate.gateway.administration.operations import OPERATIONS, PREFIX, Needs, Operation
from tidegate.gateway.administration.shapes import REFERENCE, Error, Shape, schemas
from tidegate.model import VERSION

_PARAMETERS: Final = {
    "backup": "The name of the backup.",
    "hub": "The event hub; case-insensitive.",
    "partition": "The partition's id.",
    "group": "The consumer group; case-insensitive.",
    "policy": "The policy; case-sensitive.",
    "publisher": "The publisher; case-insensitive.",
}

_CLAIMS: Final = {
    Needs.MANAGE: "Requires a policy with Manage.",
    Needs.SEE: "Requires a policy with Listen or Manage.",
    Needs.REDRIVE: "Requires a policy with Send and Listen.",
}


def openapi_document(found: Mapping[str, Any] | None = None) -> dict[str, object]:
    """The document, as plain values for JSON. found: the result of ``schemas``; None: it is called."""
    found = schemas() if found is None else found
    paths: dict[str, dict[str, object]] = {}
    for operation in OPERATIONS:
        described = _operation(operation, found)
        paths.setdefault(PREFIX + operation.path, {})[operation.method.lower()] = described
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Tidegate administration",
            "version": VERSION,
            "description": "Event hubs, consumer groups, dead letters, policies, publishers, throughput "
            "units and Capture.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "security": [{"sharedAccessSignature": []}],
        "paths": paths,
        "components": {
            "schemas": found,
            "securitySchemes": {
                "sharedAccessSignature": {
                    "type": "apiKey",
                    "in": "header",
                    "name": "Authorization",
                    "description": "SharedAccessSignature sr=…&sig=…&se=…&skn=…, made with the key of a "
                    "policy, for the namespace or for the event hub in the address.",
                }
            },
        },
    }


def _operation(operation: Operation, schemas: Mapping[str, Any]) -> dict[str, object]:
    described: dict[str, object] = {
        "operationId": operation.operation_id,
        "summary": operation.summary,
        "description": _CLAIMS[operation.needs]
        + (
            " A policy of the namespace: an event hub's own is not enough."
            if operation.is_of_namespace
            else ""
        ),
        "responses": {str(operation.status): _answer(operation), "default": _error()},
    }
    parameters = [
        {
            "name": name,
            "in": "path",
            "required": True,
            "description": _PARAMETERS[name],
            "schema": {"type": "string"},
        }
        for name in re.findall(r"\{(\w+)\}", operation.path)
    ]
    is_in_query = operation.request is not None and operation.method == "GET"
    if operation.request is not None and is_in_query:
        fields = schemas[operation.request.__name__]["properties"]
        parameters += [{"name": name, "in": "query", "schema": field} for name, field in fields.items()]
    if parameters:
        described["parameters"] = parameters
    if operation.request is not None and not is_in_query:
        described["requestBody"] = {
            "required": any(field.required for field in msgspec.structs.fields(operation.request)),
            "content": _content(_reference(operation.request)),
        }
    return described


def _answer(operation: Operation) -> dict[str, object]:
    if operation.answer is None:
        return {"description": "Done."}
    schema = _reference(operation.answer)
    if operation.is_list:
        schema = {"type": "array", "items": schema}
    description = "Created." if operation.status == 201 else "The answer."
    return {"description": description, "content": _content(schema)}


def _error() -> dict[str, object]:
    return {"description": "An error.", "content": _content(_reference(Error))}


def _reference(shape: type[Shape]) -> dict[str, object]:
    return {"$ref": f"{REFERENCE}{shape.__name__}"}


def _content(schema: dict[str, object]) -> dict[str, object]:
    return {"application/json": {"schema": schema}}
