"""Why a request of Blob Storage is refused: Azure's error codes, each with its HTTP status and a sentence.

Source: Azure "Common REST API error codes" and "Blob service error codes", 2026-09.
"""

from __future__ import annotations

from enum import Enum

from tidegate.model.errors import InvalidArgumentError


# fmt: off
class Refusal(Enum):
    """A code, by which official clients tell refusals apart."""

    AUTHENTICATION_FAILED = (
        "AuthenticationFailed", 403,
        "The request has no valid signature of a policy that may access this account.",
    )
    AUTHORIZATION_FAILURE = (
        "AuthorizationPermissionMismatch", 403, "The signature does not permit this operation."
    )
    UNSUPPORTED_OPERATION = (
        "UnsupportedHttpVerb", 405, "The service does not have this operation of Blob Storage."
    )
    UNSUPPORTED_QUERY_PARAMETER = (
        "UnsupportedQueryParameter", 400, "The service does not support a parameter of the query."
    )
    INVALID_QUERY_PARAMETER = (
        "InvalidQueryParameterValue", 400, "A parameter of the query has an invalid value."
    )
    UNSUPPORTED_HEADER = ("UnsupportedHeader", 400, "The service does not support a header.")
    INVALID_HEADER = ("InvalidHeaderValue", 400, "A header has an invalid value.")
    INVALID_METADATA = ("InvalidMetadata", 400, "The metadata is invalid.")
    METADATA_TOO_LARGE = ("MetadataTooLarge", 400, "The metadata is too large.")
    MD5_MISMATCH = ("Md5Mismatch", 400, "The content does not have the MD5 of the request.")
    INVALID_NAME = ("InvalidResourceName", 400, "The name of the container or blob is invalid.")
    RESOURCE_NOT_FOUND = ("ResourceNotFound", 404, "The account does not exist: there is no such event hub.")
    CONTAINER_NOT_FOUND = ("ContainerNotFound", 404, "The container does not exist.")
    BLOB_NOT_FOUND = ("BlobNotFound", 404, "The blob does not exist.")
    CONTAINER_EXISTS = ("ContainerAlreadyExists", 409, "The container already exists.")
    BLOB_EXISTS = ("BlobAlreadyExists", 409, "The blob already exists.")
    CONDITION_NOT_MET = ("ConditionNotMet", 412, "A condition in the headers is not met.")
    NOT_MODIFIED = ("ConditionNotMet", 304, "The blob has not changed.")
    BODY_TOO_LARGE = ("RequestBodyTooLarge", 413, "The content is too large.")
    INVALID_RANGE = ("InvalidRange", 416, "The range is not within the blob.")
    QUOTA_EXCEEDED = ("AccountQuotaExceeded", 409, "The account holds as much as it may.")
    SERVER_BUSY = ("ServerBusy", 503, "The service has too many requests; try again later.")
    INTERNAL_ERROR = ("InternalError", 500, "The service failed; its log says how.")
    OPERATION_TIMED_OUT = ("OperationTimedOut", 500, "The request took too long; it may have been made.")
    LEASE_PRESENT = ("LeaseAlreadyPresent", 409, "There is already a lease.")
    LEASE_ABSENT = ("LeaseNotPresentWithLeaseOperation", 409, "There is no lease.")
    LEASE_DIFFERS = ("LeaseIdMismatchWithLeaseOperation", 409, "The lease has another id.")
    LEASE_BREAKING = (
        "LeaseIsBreakingAndCannotBeAcquired", 409, "The lease is being broken and cannot be acquired."
    )
    LEASE_BREAKING_UNCHANGED = (
        "LeaseIsBreakingAndCannotBeChanged", 409, "The lease is being broken and cannot be changed."
    )
    LEASE_BROKEN = ("LeaseIsBrokenAndCannotBeRenewed", 409, "The lease was broken and cannot be renewed.")
    LEASE_ID_MISSING = ("LeaseIdMissing", 412, "The blob has a lease, and the request has no id of it.")
    LEASE_ID_DIFFERS = ("LeaseIdMismatchWithBlobOperation", 412, "The blob's lease has another id.")
    LEASE_LOST = ("LeaseLost", 412, "The lease has expired.")
    LEASE_NOT_PRESENT = ("LeaseNotPresentWithBlobOperation", 412, "The blob has no lease.")

    # fmt: on
    def __init__(self, code: str, status: int, sentence: str) -> None:
        self.code = code
        self.status = status
        self.sentence = sentence


class BlobRefusedError(InvalidArgumentError):
    """A request that Blob Storage refuses."""

    def __init__(self, refusal: Refusal, detail: str = "", *, retry_after_s: float | None = None) -> None:
        """detail: a sentence with the values, behind that of the code."""
        super().__init__(f"{refusal.sentence} {detail}".rstrip(), retry_after_s=retry_after_s)
        self.refusal = refusal
