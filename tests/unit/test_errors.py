"""errors.csv: what each provider's errors mean. Every row is reached, and the ambiguous ones are told apart."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import NamedTuple, get_args

import pytest

from cloudgpu.provisioners.base import ErrorClass, Scope
from cloudgpu.provisioners.errors import COLUMNS, classify, rules

TABLE = Path(__file__).parents[2] / "provisioners" / "errors.csv"
P4D = (
    "We currently do not have sufficient p4d.24xlarge capacity in the Availability Zone you requested (us-east-1a). "
    "Our system will be working on provisioning additional capacity. You can currently get p4d.24xlarge capacity by "
    "not specifying an Availability Zone in your request or choosing us-east-1b, us-east-1d."
)


class Case(NamedTuple):
    """An error and what it means; messages as they were seen in traces and documentation."""

    cloud: str
    code: str
    status: int | None
    message: str
    error_class: str
    scope: str


CASES = [
    Case("aws", "InsufficientInstanceCapacity", 500, P4D, "capacity", "zone"),
    Case("aws", "InsufficientInstanceCapacity", 500, "Insufficient capacity.", "capacity", "zone"),
    Case("aws", "Server.InsufficientInstanceCapacity", None, "Insufficient capacity", "capacity", "zone"),
    Case("aws", "UnfulfillableCapacity", 400, "Unable to fulfill capacity", "capacity", "zone"),
    Case("aws", "ReservationCapacityExceeded", 400, "The capacity reservation has no room", "capacity", "zone"),
    Case("aws", "SpotMaxPriceTooLow", 400, "Your Spot request price is lower than the minimum", "capacity", "region"),
    Case(
        "aws",
        "Unsupported",
        400,
        "Your requested instance type (p5.48xlarge) is not supported in your requested Availability Zone (us-east-1e).",
        "not_offered",
        "zone",
    ),
    Case("aws", "Unsupported", 400, "The requested configuration is currently not supported.", "not_offered", "region"),
    Case("aws", "InvalidAMIID.NotFound", 400, "The image id '[ami-1]' does not exist", "not_offered", "region"),
    Case("aws", "VcpuLimitExceeded", 400, "You have requested more vCPU capacity than your limit", "quota", "region"),
    Case("aws", "MaxSpotInstanceCountExceeded", 400, "Max spot instance count exceeded", "quota", "region"),
    Case("aws", "Client.VolumeLimitExceeded", None, "Volume limit exceeded", "quota", "region"),
    Case("aws", "Client.InternalError", None, "Client.InternalError: Client error on launch", "capacity", "zone"),
    Case("aws", "Server.InternalError", None, "Server.InternalError: Internal error", "capacity", "zone"),
    Case("aws", "Client.InvalidSnapshot.NotFound", None, "The snapshot was not found", "not_offered", "region"),
    Case("aws", "Client.InvalidKMSKey.InvalidState", None, "Client.InvalidKMSKey.InvalidState: x", "auth", "region"),
    Case("aws", "ServiceLinkedRoleFailure", 500, "The role is not yet ready for use.", "transient", "region"),
    Case("aws", "InvalidGroup.InUse", 400, "The security group is in use.", "transient", "region"),
    Case("aws", "InvalidSubnetID.NotFound", 400, "The subnet ID 'subnet-1' does not exist", "transient", "region"),
    Case("gcp", "RESOURCE_NOT_READY", None, "The resource 'x' is not ready", "transient", "zone"),
    Case(
        "vertex",
        "FAILED_PRECONDITION",
        400,
        "Service agents are being provisioned (https://x). Please try again in a few minutes.",
        "transient",
        "region",
    ),
    Case("aws", "LimitExceeded", 409, "Cannot exceed quota for RolesPerAccount: 1000", "quota", "cloud"),
    Case("aws", "UnauthorizedOperation", 403, "You are not authorized to perform this operation.", "auth", "cloud"),
    Case("aws", "ExpiredToken", 400, "The provided token has expired.", "expired", "cloud"),
    Case("aws", "RequestExpired", 400, "Request has expired.", "expired", "cloud"),
    Case("azure", "ExpiredAuthenticationToken", 401, "The access token expiry UTC time …", "expired", "cloud"),
    Case("azure", "invalid_grant", 400, "AADSTS700082: The refresh token has expired", "expired", "cloud"),
    Case("azure", "invalid_client", 401, "AADSTS7000222: The provided client secret keys …", "expired", "cloud"),
    Case("azure", "invalid_client", 401, "AADSTS7000215: Invalid client secret provided.", "auth", "cloud"),
    Case("aws", "InvalidClientTokenId", 403, "The security token included in the request is invalid.", "auth", "cloud"),
    Case("aws", "NoCredentialsError", None, "Unable to locate credentials", "auth", "cloud"),
    Case("aws", "RequestTimeTooSkewed", 403, "The difference is too large", "auth", "cloud"),
    Case(
        "aws",
        "InvalidParameterValue",
        400,
        "Value (arn:aws:iam::1:x) for parameter iamInstanceProfile.arn is invalid. Invalid IAM Instance Profile ARN",
        "transient",
        "region",
    ),
    Case("aws", "InvalidParameterValue", 400, 'Profile "x" has no associated IAM Roles', "transient", "region"),
    Case("aws", "NoSuchEntity", 404, "Instance Profile x cannot be found.", "transient", "region"),
    Case("aws", "InvalidParameterValue", 400, "Invalid value '0' for size", "invalid", "cloud"),
    Case("aws", "InvalidParameterValue", 400, "Invalid value 'p9.large' for InstanceType.", "not_offered", "region"),
    Case("aws", "AuthFailure.ServiceLinkedRoleCreationNotPermitted", 403, "no permission", "auth", "market"),
    Case("aws", "IdempotentParameterMismatch", 400, "Arguments on this idempotent request", "invalid", "zone"),
    Case("aws", "RequestLimitExceeded", 503, "Request limit exceeded.", "throttled", "region"),
    Case("aws", "InternalError", 500, "An internal error has occurred", "transient", "region"),
    Case("aws", "503", 503, "Service Unavailable", "transient", "region"),
    Case("aws", "ReadTimeoutError", None, "Read timeout on endpoint URL", "transient", "region"),
    Case("aws", "InvalidInstanceID.NotFound", 400, "The instance ID 'i-1' does not exist", "transient", "region"),
    Case("aws", "BrandNewError", 400, "Nobody has ever seen this", "invalid", "cloud"),
    Case("aws", "BrandNewError", 502, "Nobody has ever seen this", "transient", "region"),
    Case("aws", "BrandNewError", 429, "Slower", "throttled", "region"),
    Case("aws", "BrandNewError", 403, "No", "auth", "cloud"),
    Case(
        "gcp",
        "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS",
        503,
        "The zone 'projects/p/zones/us-east1-b' does not have enough resources",
        "capacity",
        "zone",
    ),
    Case("gcp", "UNSUPPORTED_OPERATION", 400, "Instance was preempted", "capacity", "zone"),
    Case("gcp", "QUOTA_EXCEEDED", 403, "Quota 'NVIDIA_T4_GPUS' exceeded.  Limit: 1.0 in region x", "quota", "region"),
    Case("gcp", "QUOTA_EXCEEDED", 403, "Quota 'GPUS_ALL_REGIONS' exceeded.  Limit: 0.0 globally.", "quota", "cloud"),
    Case("gcp", "rateLimitExceeded", 403, "Rate Limit Exceeded", "throttled", "region"),
    Case("gcp", "forbidden", 403, "Required 'compute.instances.create' permission for 'projects/p'", "auth", "cloud"),
    Case("gcp", "accessNotConfigured", 403, "Compute Engine API has not been used in project", "auth", "cloud"),
    Case(
        "gcp",
        "invalid",
        400,
        "Machine type with name 'a2-highgpu-1g' does not exist in zone 'us-east1-b'.",
        "not_offered",
        "zone",
    ),
    Case("gcp", "invalid", 400, "Invalid value for field 'resource.name'", "invalid", "cloud"),
    Case(
        "gcp",
        "UNSUPPORTED_OPERATION",
        400,
        "Specified reservations [r] do not have available resources for the request.",
        "capacity",
        "zone",
    ),
    Case("gcp", "IP_SPACE_EXHAUSTED", 403, "IP space of 'projects/p/…' is exhausted.", "quota", "region"),
    Case("gcp", "SERVICE_ACCOUNT_ACCESS_DENIED", 400, "The user does not have access to it", "auth", "cloud"),
    Case(
        "gcp",
        "forbidden",
        403,
        "The user does not have access to service account 'x'. User: 'y'. Ask a project owner to grant you the "
        "iam.serviceAccountUser role on the service account",
        "auth",
        "cloud",
    ),
    Case(
        "gcp",
        "invalid",
        400,
        "The resource 'projects/p/serviceAccounts/x@p' of type 'serviceAccount' was not found.",
        "invalid",
        "cloud",
    ),
    Case("gcp", "conditionNotMet", 412, "Constraint constraints/compute.vmExternalIpAccess violated", "auth", "cloud"),
    Case("gcp", "conditionNotMet", 412, "Constraint constraints/compute.requireOsLogin violated", "auth", "cloud"),
    Case("gcp", "alreadyExists", 409, "The resource 'x' already exists", "transient", "zone"),
    Case("gcp", "DefaultCredentialsError", None, "Your default credentials were not found", "auth", "cloud"),
    Case("gcp", "RefreshError", None, "invalid_grant: Bad Request", "expired", "cloud"),
    Case("vertex", "RefreshError", None, "invalid_grant: Bad Request", "expired", "cloud"),
    Case("vertex", "TransportError", None, "oauth2.googleapis.com cannot be reached", "transient", "region"),
    Case("gcp", "SSLError", None, "certificate verify failed", "transient", "region"),
    Case("gcp", "Timeout", None, "Read timed out", "transient", "region"),
    Case("gcp", "backendError", 503, "Backend Error", "transient", "region"),
    Case(
        "vertex",
        "8",
        None,
        "Resources are insufficient in region: us-central1.",
        "capacity",
        "region",
    ),
    Case(
        "vertex",
        "RESOURCE_EXHAUSTED",
        429,
        "The following quota metrics exceed quota limits: aiplatform.googleapis.com/custom_model_training_nvidia",
        "quota",
        "region",
    ),
    Case("vertex", "RESOURCE_EXHAUSTED", 429, "Too many requests per minute", "throttled", "region"),
    Case("vertex", "PERMISSION_DENIED", 403, "Permission 'aiplatform.customJobs.create' denied", "auth", "cloud"),
    Case("vertex", "INVALID_ARGUMENT", 400, "List of found errors: 1.Field: job_spec", "invalid", "cloud"),
    Case("vertex", "UNAVAILABLE", 503, "The service is currently unavailable", "transient", "region"),
    Case("vertex", "8", None, "Training failed: STOCKOUT", "capacity", "region"),
    Case("vertex", "8", None, "The replica workerpool0-0 was OOM", "throttled", "region"),
    Case(
        "vertex", "RATE_LIMIT_EXCEEDED", 429, "Quota exceeded for quota metric 'CRUD requests'", "throttled", "region"
    ),
    Case("vertex", "SERVICE_DISABLED", 403, "Vertex AI API has not been used in project p", "auth", "cloud"),
    Case(
        "vertex",
        "IAM_PERMISSION_DENIED",
        403,
        "Permission 'iam.serviceAccounts.actAs' denied on service account cloudgpu-machine@p",
        "auth",
        "cloud",
    ),
    Case("vertex", "UNAUTHENTICATED", 401, "Request had invalid authentication credentials", "auth", "cloud"),
    Case(
        "vertex",
        "INVALID_ARGUMENT",
        400,
        'Accelerator "NVIDIA_L4" is not supported for machine type "n1-standard-4".',
        "not_offered",
        "region",
    ),
    Case("vertex", "5", None, "Container image gcr.io/p/x was not found", "invalid", "cloud"),
    Case("vertex", "13", None, "Internal error occurred for the current attempt", "transient", "region"),
    Case(
        "azure",
        "ZonalAllocationFailed",
        200,
        "Allocation failed. No capacity",
        "capacity",
        "zone",
    ),
    Case("azure", "AllocationFailed", 200, "Allocation failed.", "capacity", "region"),
    Case(
        "azure",
        "SkuNotAvailable",
        409,
        "The requested VM size Standard_NC4as_T4_v3 is currently not available in location 'eastus' zone '1'",
        "capacity",
        "zone",
    ),
    Case("azure", "SkuNotAvailable", 409, "is currently not available in location 'eastus'", "capacity", "region"),
    Case("azure", "SkuNotAvailable", 409, "NotAvailableForSubscription", "not_offered", "region"),
    Case(
        "azure",
        "OperationNotAllowed",
        409,
        "Operation could not be completed as it results in exceeding approved standardNCASv3_T4Family Cores quota.",
        "quota",
        "region",
    ),
    Case("azure", "OperationNotAllowed", 429, "exceeding approved Cores quota", "throttled", "region"),
    Case("azure", "OperationNotAllowed", 409, "The VM is being deleted", "invalid", "cloud"),
    Case("azure", "InvalidParameter", 400, "The value of parameter vmSize is not available", "not_offered", "region"),
    Case("azure", "InvalidParameter", 400, "The value of parameter adminUsername is invalid", "invalid", "cloud"),
    Case("azure", "AuthorizationFailed", 403, "does not have authorization to perform action", "auth", "cloud"),
    Case("azure", "AuthorizationFailed", 403, "action 'Microsoft.X/roleAssignments/write'", "auth", "cloud"),
    Case("azure", "RequestDisallowedByPolicy", 403, "Resource 'x' was disallowed by policy", "auth", "cloud"),
    Case("azure", "PublicIPCountLimitReached", 400, "Cannot create more than 20 addresses", "quota", "region"),
    Case("azure", "PlatformImageNotFound", 404, "The platform image 'x' is not available", "not_offered", "region"),
    Case("azure", "NicReservedForAnotherVm", 400, "Nic is reserved for another VM", "transient", "region"),
    Case("azure", "PrincipalNotFound", 400, "Principal x does not exist in the directory", "transient", "region"),
    Case("azure", "ResourceGroupBeingDeleted", 409, "'x' is in deprovisioning state", "transient", "region"),
    Case("azure", "ScopeLocked", 409, "The scope 'x' cannot perform delete operation", "auth", "cloud"),
    Case("azure", "OSProvisioningTimedOut", 200, "OS Provisioning did not finish in the time", "capacity", "zone"),
    Case("azure", "invalid_client", 401, "AADSTS7000215: Invalid client secret provided", "auth", "cloud"),
    Case("azure", "ClientAuthenticationError", None, "Max retries exceeded with url", "transient", "region"),
    Case("azure", "ClientAuthenticationError", None, "Attempted credentials failed", "auth", "cloud"),
    Case("azure", "ServiceRequestError", None, "Name or service not known", "transient", "region"),
    Case("azure", "NoRegisteredProviderFound", 400, "for location 'moon'", "not_offered", "region"),
    Case("azure", "ConflictingUserInput", 409, "Disk x already exists in resource group y.", "transient", "region"),
    Case("azure", "NetworkingInternalOperationError", None, "Unknown network allocation error", "transient", "region"),
    Case("azure", "RetryableErrorDueToAnotherOperation", 429, "x is in progress", "throttled", "region"),
    Case("azure", "RetryableErrorDueToAnotherOperation", 409, "x is in progress", "transient", "region"),
    Case("azure", "ReferencedResourceNotProvisioned", 400, "x is in Updating state", "transient", "region"),
    Case("azure", "Failed", None, "the machine is Failed", "capacity", "zone"),
    Case("azure", "Canceled", None, "the machine is Canceled", "capacity", "zone"),
    Case("azure", "InternalExecutionError", 500, "An internal execution error occurred.", "transient", "region"),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.cloud}-{case.code}-{case.error_class}")
def test_class_and_scope_and_the_providers_own_words(case: Case) -> None:
    error = classify(case.cloud, code=case.code, status=case.status, message=case.message, doing="start worker-0.1")
    assert (error.error_class, error.scope, error.code) == (case.error_class, case.scope, case.code)
    assert str(error).startswith("start worker-0.1: ")
    assert case.code in str(error)
    assert case.message.rstrip(".") in str(error)


def test_zones_that_the_message_names_are_hints() -> None:
    error = classify("aws", code="InsufficientInstanceCapacity", status=500, message=P4D)
    assert error.hints == ("us-east-1b", "us-east-1d")
    one = P4D.replace("us-east-1b, us-east-1d", "us-east-1b")
    assert classify("aws", code="InsufficientInstanceCapacity", status=500, message=one).hints == ("us-east-1b",)
    assert classify("aws", code="InsufficientInstanceCapacity", message="Insufficient capacity.").hints == ()


def test_hints_that_are_told_apart_from_the_message_are_kept() -> None:
    error = classify("gcp", code="STOCKOUT", message="none", hints=["us-east1-c"], retry_after=3.0)
    assert (error.hints, error.retry_after) == (("us-east1-c",), 3.0)


def test_advice_says_what_to_do() -> None:
    assert "Service Quotas" in str(classify("aws", code="VcpuLimitExceeded", status=400, message="too many"))
    assert str(classify("aws", code="InternalError", status=500, message="Try again.")) == "InternalError: Try again"


def test_the_table_is_in_order() -> None:
    with TABLE.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert tuple(rows[0]) == COLUMNS
    assert len(rules()) == len(rows)
    for row in rows:
        assert row["class"] in get_args(ErrorClass)
        assert row["scope"] in get_args(Scope)
        assert row["source"], row
        assert row["code"] or row["status"] or row["pattern"] or row is rows[-1], f"fits everything: {row}"
    assert {row["cloud"] for row in rows} == {"aws", "gcp", "vertex", "azure", "*"}


def test_no_row_is_hidden_by_one_before_it() -> None:
    """A code that an earlier row with fewer conditions answers for would never be read."""
    for number, late in enumerate(rules()):
        for early in rules()[:number]:
            covers = (
                early.cloud in (late.cloud, "*")
                and (not early.codes or bool(early.codes & late.codes))
                and early.status in (late.status, "")
                and (early.pattern is None or early.pattern == late.pattern)
            )
            assert not covers, f"{late} is hidden by {early}"
