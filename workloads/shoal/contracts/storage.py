"""Where a run keeps its objects: a folder, an S3-compatible store, Azure Blob Storage or Google Cloud Storage; who asks for them; what is kept.

Parts of `TrainingRun.spec.storage`, and of `config/run.json`; `shoal.storage` opens what they describe. Pure.
"""

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from shoal.contracts.base import SIZE_PATTERN, ShortText, SpecModel, unset


class WorkloadIdentity(SpecModel):
    """Temporary keys of an S3-compatible store, which its token service gives for a service account's token (AssumeRoleWithWebIdentity)."""

    service_account: Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?$")] = Field(
        ...,
        description="Service account of the parts that read or write the store; it must exist in the run's namespace.",
    )
    role_arn: ShortText = Field(..., description="Role that the service account may assume.")
    sts_endpoint: ShortText = Field(
        ...,
        description="URL of the token service: on AWS https://sts.REGION.amazonaws.com, of MinIO the store's own.",
    )
    audience: ShortText = Field("sts.amazonaws.com", description="Audience that the token is made for.")
    duration_seconds: int | None = Field(
        None,
        ge=900,
        le=43_200,
        description="Life of the temporary keys, in seconds; absent: what the service gives, on AWS an hour, on MinIO the token's own.",
    )


class S3Storage(SpecModel):
    """An S3-compatible object store such as MinIO."""

    endpoint: ShortText = Field(..., description="URL of the store as the run's own parts reach it.")
    public_endpoint: ShortText | None = Field(None, description="URL of the store as strangers' machines reach it.")
    bucket: Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]$")] = Field(
        ..., description="Bucket; it must exist."
    )
    region: ShortText = Field("us-east-1", description="Region name that signatures are made for.")
    credentials_secret: ShortText | None = Field(
        None, exclude_if=unset, description="Secret with `accessKey` and `secretKey`."
    )
    workload_identity: WorkloadIdentity | None = Field(
        None, exclude_if=unset, description="Temporary keys for a service account, instead of a Secret."
    )


class AzureWorkload(SpecModel):
    """An access token of Microsoft Entra ID, which it gives for a service account's token (OAuth 2.0 client credentials with an assertion)."""

    service_account: Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?$")] = Field(
        ...,
        description="Service account of the parts that read or write the store; it must exist in the run's namespace.",
    )
    tenant_id: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9.-]{0,252}$")] = Field(
        ..., description="Tenant of the application, by its id or domain."
    )
    client_id: Annotated[str, StringConstraints(pattern=r"^[0-9a-fA-F-]{36}$")] = Field(
        ...,
        description="Application or managed identity whose federated credential names the service account. It needs to read, write and delete blobs.",
    )
    authority: ShortText = Field(
        "https://login.microsoftonline.com", description="URL of the token service; national clouds have others."
    )
    audience: ShortText = Field("api://AzureADTokenExchange", description="Audience that the token is made for.")


class AzureStorage(SpecModel):
    """A container of Azure Blob Storage. The orchestrator takes strangers' uploads, as with a folder."""

    account: Annotated[str, StringConstraints(pattern=r"^[a-z0-9]{3,24}$")] = Field(..., description="Storage account.")
    container: Annotated[str, StringConstraints(max_length=63, pattern=r"^[a-z0-9](-?[a-z0-9]){2,62}$")] = Field(
        ..., description="Container; it must exist."
    )
    endpoint: ShortText | None = Field(
        None, description="URL of the blob service; absent: https://ACCOUNT.blob.core.windows.net."
    )
    workload_identity: AzureWorkload = Field(..., description="Who the store is asked as.")

    @property
    def url(self) -> str:
        """URL of the blob service."""
        return self.endpoint or f"https://{self.account}.blob.core.windows.net"


class GcsWorkload(SpecModel):
    """An access token of Google's, which its Security Token Service gives for a service account's token (Workload Identity Federation)."""

    service_account: Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?$")] = Field(
        ...,
        description="Service account of the parts that read or write the store; it must exist in the run's namespace.",
    )
    provider: Annotated[str, StringConstraints(pattern=r"^//iam\.googleapis\.com/projects/.{1,400}$")] = Field(
        ...,
        description="Provider of the identity pool that trusts the cluster: //iam.googleapis.com/projects/NUMBER/locations/global/"
        "workloadIdentityPools/POOL/providers/NAME. The bucket's roles name its principal.",
    )
    audience: ShortText | None = Field(
        None,
        description="Audience that the token is made for; absent: https: and the provider, which Google expects by default.",
    )
    sts_endpoint: ShortText = Field("https://sts.googleapis.com/v1/token", description="URL of the token service.")

    @property
    def token_audience(self) -> str:
        """Audience that the service account's token is made for."""
        return self.audience or f"https:{self.provider}"


class GcsStorage(SpecModel):
    """A bucket of Google Cloud Storage. The orchestrator takes strangers' uploads, as with a folder."""

    bucket: Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9._-]{1,61}[a-z0-9]$")] = Field(
        ..., description="Bucket; it must exist."
    )
    endpoint: ShortText = Field("https://storage.googleapis.com", description="URL of the store's XML API.")
    workload_identity: GcsWorkload = Field(..., description="Who the store is asked as.")


class Retention(SpecModel):
    """What the store keeps of steps that are past. The ledger, batches, beacons, verdicts and findings always stay."""

    keep: Literal["Everything", "Audit", "Verify"] = Field(
        "Audit",
        description="Audit: all that `shoal ledger audit` reads; leases and the bytes of late files go. Verify: all that `shoal ledger verify` reads;"
        " every file of a step goes once it is trained, and an audit cannot check it any more. Everything: nothing goes.",
    )
    steps: int = Field(16, ge=2, le=100_000, description="Newest sealed steps of which everything stays.")


class StorageSpec(SpecModel):
    """The object store: a folder by default, an S3-compatible store with `s3`, Azure Blob Storage with `azure`, Google Cloud Storage with `gcs`."""

    prefix: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")] = Field(
        "shoal", description="First part of every object key."
    )
    s3: S3Storage | None = Field(None, description="Use this store instead of a folder.")
    azure: AzureStorage | None = Field(None, exclude_if=unset, description="Use this container instead of a folder.")
    gcs: GcsStorage | None = Field(
        None, exclude_if=unset, description="Use this bucket of Google's instead of a folder."
    )
    folder_size: Annotated[str, StringConstraints(max_length=32, pattern=SIZE_PATTERN)] = Field(
        "20Gi", description="Size of the volume that holds the folder store."
    )
    retention: Retention | None = Field(
        None,
        exclude_if=unset,
        description="What is kept of past steps; absent: what an audit reads, and 16 steps whole.",
    )

    @property
    def is_folder(self) -> bool:
        """Whether the store is a volume of the run."""
        return self.s3 is None and self.azure is None and self.gcs is None
