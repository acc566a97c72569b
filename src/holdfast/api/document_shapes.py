"""Documents and imports as they go over the wire."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, Field, SecretStr

from holdfast.api.shapes import Flag, Given, Labels, OwnerName, Short


class DocumentWish(Given):
    document: dict[str, Any] = Field(description="The certificates as a document: see `holdfast export --schema`.")
    prune: Flag = Field(default=False, description="Archive what is not in it; nothing is revoked.")


class ApplyWish(DocumentWish):
    expect: str | None = Field(default=None, max_length=200, description="`digest` of the plan that was reviewed.")
    skip: list[Annotated[str, Field(max_length=253)]] = Field(default=[], max_length=100_000)


class StepChange(BaseModel):
    field: str
    was: Any
    will_be: Any


class Step(BaseModel):
    action: str
    name: str
    reason: str
    issues: bool = Field(description="Whether a certificate is ordered for it.")
    changes: list[StepChange]


class StepDone(Step):
    error: str = Field(description="Empty: it is done.")
    hint: str


class Plan(BaseModel):
    steps: list[Step]
    unchanged: int
    left_alone: list[str]
    orders: dict[str, int] = Field(description="By the CA that is asked first.")
    budgets: dict[str, int] = Field(description="What each of them would take now.")
    approvals: int
    digest: str


class Applied(BaseModel):
    done: list[StepDone]
    left: int = Field(description="How many are left: ask again, with those that failed in `skip`.")


class AccountImport(Given):
    directory: Annotated[str, Field(max_length=500)]
    key: SecretStr | None = Field(default=None, max_length=20_000, description="PKCS#8, in PEM.")
    url: Annotated[str, Field(max_length=500)] | None = None
    contacts: list[Short] = Field(default=[], max_length=10)
    roots: Annotated[str, Field(max_length=100_000)] = ""


class AccountImported(BaseModel):
    issuer: str
    directory: str
    added: bool
    account: bool


class CertificateImport(Given):
    name: Short
    names: list[Short] = Field(min_length=1, max_length=100)
    chain: Annotated[str, Field(max_length=100_000)]
    key: SecretStr = Field(max_length=20_000)
    key_kind: Short
    directory: Annotated[str, Field(max_length=500)] | None = None
    account_url: Annotated[str, Field(max_length=500)] | None = None
    reuse_key: Flag = False
    preferred_chain: Short | None = None
    profile: Short | None = None
    paused: Flag = Field(default=False, description="Adopt it, and do not renew it.")
    renew_before_s: float | None = Field(default=None, gt=0, le=10**9, description="Renew it so long before its end.")


class CertificatesImport(Given):
    certificates: list[CertificateImport] = Field(max_length=100)
    issuer: Short | None = None
    owner: OwnerName = ""
    labels: Labels = Field(default={})


class CertificateImported(BaseModel):
    name: str
    verdict: str
    issuer: str
    why: str
    next_step: str
    renewal_at: str | None
