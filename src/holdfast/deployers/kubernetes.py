"""Kubernetes: a TLS Secret by server-side apply. Key and certificate are one object, so they change together.

The apply names the resourceVersion that was read: a change of the Secret meanwhile is noticed. It is never forced,
unless the target says `take_over`.
"""

from __future__ import annotations

import re
from base64 import b64encode
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from pydantic import Field

from holdfast.core.kind import DESTINATIONS, Credential, Kind, Trait
from holdfast.core.reasons import Reason
from holdfast.core.target import DeployLimits
from holdfast.deployers.base import Bundle, Written, refused
from holdfast.deployers.held import Held, nothing_before, texts_of
from holdfast.deployers.kind import DeployerKind, DeployerParts
from holdfast.deployers.rest import Remote, RestTargetSettings, read_json, table
from holdfast.errors import Refused, TryLater
from holdfast.kind_settings import Flag, Text, whole
from holdfast.ports import Response
from holdfast.secret import Secret

TYPE: Final = "kubernetes.io/tls"
MANAGER: Final = "holdfast"
_APPLY: Final = {"Content-Type": "application/apply-patch+yaml"}  # JSON is YAML, too
_LABEL: Final = "[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
_NAME: Final = rf"{_LABEL}(?:\.{_LABEL})*"
_MANAGED_BY: Final = re.compile(r'conflict with "([^"]{1,100})"')


class KubernetesSettings(RestTargetSettings):
    namespace: str = Field(pattern=whole(_LABEL), description="The namespace of the Secret.")
    secret: str = Field(pattern=whole(_NAME), max_length=253, description="The name of the Secret.")
    token_file: Text = Field(
        default="",
        description="A file with the token, which is read each time; the host must allow it (deployment.local_file).",
    )
    config_map: str = Field(
        default="",
        pattern=whole(_NAME),
        max_length=253,
        description="A ConfigMap that gets the roots of our own CAs, as ca.crt.",
    )
    take_over: Flag = Field(default=False, description="Take fields of the Secret over from other managers.")


@dataclass(frozen=True, slots=True)
class KubernetesDeployer:
    settings: KubernetesSettings
    parts: DeployerParts

    async def write(self, bundle: Bundle) -> Written:
        trusts = await self._trusts(bundle)
        written = await self._applied(bundle, None)
        return Written(changed=written.changed or trusts)

    async def restore(self, bundle: Bundle, previous: Bundle | None) -> None:
        if previous is None:
            raise nothing_before(self.parts.target, "Kubernetes")
        await self._applied(previous, bundle)

    async def probe(self) -> str:
        found = await self._found()
        there = "There is no such Secret yet." if found is None else "It is there and can be read."
        return f"The API server answers for Secret {self.settings.namespace}/{self.settings.secret}. {there}"

    async def close(self) -> None:
        """Nothing stays open."""

    # ── The Secret ──

    async def _applied(self, bundle: Bundle, instead_of: Bundle | None) -> Written:
        found = await self._found()
        wanted, data = self._object(bundle), {}
        if found is not None:
            metadata, data = table(found.get("metadata")), table(found.get("data"))
            if held := _held(metadata):
                held.yields(self.parts.target, bundle, instead_of)
            if data == wanted["data"] and held is not None and held.number == bundle.number:
                return Written(changed=False)
            wanted["metadata"]["resourceVersion"] = metadata.get("resourceVersion")
        await self._patch(self._path, wanted, f"Secret {self._place}")
        return Written(changed=data != wanted["data"])

    async def _found(self) -> dict[str, Any] | None:
        """The Secret, if there is one; Refused if it is none of a kind that we may change."""
        response = await self._ask("GET", self._path, "get")
        if response.status == 404:
            return None
        found = self._remote().answer(response)
        if found.get("type") != TYPE:
            why = f"Secret {self._place} has the type {str(found.get('type'))!r:.60}, which cannot be changed to {TYPE}"
            raise refused(f"Target {self.parts.target}: {why}. Delete it, or name another.", Reason.TARGET_TAKEN)
        if found.get("immutable") is True:
            why = f"Secret {self._place} is immutable. Delete it, or name another"
            raise refused(f"Target {self.parts.target}: {why}.", Reason.TARGET_TAKEN)
        return found

    def _object(self, bundle: Bundle) -> dict[str, Any]:
        pair = {"tls.crt": bundle.fullchain, "tls.key": bundle.key.reveal()}
        return {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {
                "name": self.settings.secret,
                "namespace": self.settings.namespace,
                "labels": {"app.kubernetes.io/managed-by": MANAGER},
                "annotations": {f"{MANAGER}/{name}": text for name, text in texts_of(bundle).items()},
            },
            "type": TYPE,
            "data": {name: b64encode(content).decode() for name, content in pair.items()},
        }

    async def _patch(self, path: str, wanted: dict[str, Any], what: str) -> None:
        force, resource = "&force=true" if self.settings.take_over else "", f"{wanted['kind']}s".lower()
        asked = f"{path}?fieldManager={MANAGER}{force}"
        response = await self._ask("PATCH", asked, "patch", wanted, resource=resource)
        if response.status == 409:
            raise self._conflict(response, what)
        missing = f"Check the setting namespace: {self.settings.namespace}."
        found = self._remote().answer(response, {404: missing})
        if not wanted["data"].items() <= table(found.get("data")).items():  # an admission webhook changed it
            raise refused(f"Target {self.parts.target}: {what} is not what was applied.")

    def _conflict(self, response: Response, what: str) -> Refused | TryLater:
        causes = table(table(read_json(response)).get("details")).get("causes")
        said = [table(each) for each in causes] if isinstance(causes, list) else []
        taken = [each for each in said if each.get("reason") == "FieldManagerConflict"]
        if not taken:
            return self._remote().passing(response, Reason.TARGET_BUSY)  # it was changed since it was read
        names = {found[1] for each in taken if (found := _MANAGED_BY.search(str(each.get("message"))))}
        who = ", ".join(sorted(names)) or "somebody else"
        why = f"fields of {what} are managed by {who}. Set take_over to true to take them over"
        return refused(f"Target {self.parts.target}: {why}.", Reason.TARGET_TAKEN)

    async def _trusts(self, bundle: Bundle) -> bool:
        """Let the ConfigMap hold the roots of this bundle; whether it did not before."""
        if not self.settings.config_map or not bundle.roots:
            return False
        path = f"/api/v1/namespaces/{self.settings.namespace}/configmaps/{self.settings.config_map}"
        response, data = await self._ask("GET", path, "get", resource="configmaps"), {"ca.crt": bundle.roots.decode()}
        found = {} if response.status == 404 else self._remote().answer(response)
        if table(found.get("data")).get("ca.crt") == data["ca.crt"]:
            return False
        metadata = {
            "name": self.settings.config_map,
            "namespace": self.settings.namespace,
            "labels": {"app.kubernetes.io/managed-by": MANAGER},
        }
        wanted = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}
        await self._patch(path, wanted, f"ConfigMap {self.settings.namespace}/{self.settings.config_map}")
        return True

    # ── The API server ──

    @property
    def _place(self) -> str:
        return f"{self.settings.namespace}/{self.settings.secret}"

    @property
    def _path(self) -> str:
        return f"/api/v1/namespaces/{self.settings.namespace}/secrets/{self.settings.secret}"

    def _remote(self, *secrets: Secret[str]) -> Remote:
        settings, known = self.settings, (*self.parts.credentials.values(), *secrets)
        return Remote(
            parts=self.parts, name="Kubernetes", base=settings.base_url, roots=settings.roots, secrets=known
        )  # fmt: skip

    async def _ask(self, method: str, path: str, verb: str, body: Any = b"", *, resource: str = "secrets") -> Response:
        """A projected token is replaced every hour: one that has just expired is read again, once."""
        token = self._token()
        response = await self._sent(method, path, body, token)
        if response.status == 401 and self.settings.token_file:
            token = self._token()
            response = await self._sent(method, path, body, token)
        if response.status == 401:
            where = "the setting token_file" if self.settings.token_file else "the credential token"
            raise self._remote(token).refusal(response, f"Check {where}.")
        if response.status == 403:
            needs = f"Its role needs the verb {verb} on {resource} in {self.settings.namespace}"
            also = ", and create while it is not there" if verb == "patch" else ""
            raise self._remote(token).refusal(response, f"{needs}{also}.")
        return response

    async def _sent(self, method: str, path: str, body: Any, token: Secret[str]) -> Response:
        headers = {"Accept": "application/json", "Authorization": f"Bearer {token.reveal()}"}
        return await self._remote(token).ask(method, path, body=body, headers=headers | (_APPLY if body else {}))

    def _token(self) -> Secret[str]:
        if not self.settings.token_file:
            return self.parts.credentials["token"]
        path = Path(self.settings.token_file)
        if self.parts.local.token_files.get(path) != self.settings.base_url:
            why = f"this host does not allow the token of {path} to be sent to {self.settings.base_url}"
            raise refused(f"Target {self.parts.target}: {why} (token_files in deployment.local_file).")
        try:
            content = self.parts.files.read(path)
        except OSError as error:
            raise refused(f"Target {self.parts.target}: {path} cannot be read: {error.strerror}.") from None
        if not content:
            raise refused(f"Target {self.parts.target}: there is no token in {path}.")
        return Secret(content.decode("utf-8", "replace").strip())


def _held(metadata: dict[str, Any]) -> Held | None:
    texts = table(metadata.get("annotations")).items()
    return Held.read({name.removeprefix(f"{MANAGER}/"): text for name, text in texts if name.startswith(f"{MANAGER}/")})


def _fits(settings: KubernetesSettings, credentials: Any) -> None:
    if bool(settings.token_file) == ("token" in credentials):
        raise ValueError("either the setting token_file or the credential token says who we are, and not both")


KUBERNETES: Final[DeployerKind[KubernetesSettings]] = Kind(
    name="kubernetes",
    summary="A TLS Secret of Kubernetes, by server-side apply.",
    settings=KubernetesSettings,
    credentials=(Credential(name="token", summary="A token of a service account.", required=False),),
    fits=_fits,
    limits=DeployLimits(verify_for=timedelta(minutes=3), certificates=1),
    traits=frozenset({Trait.ATOMIC}),
    make=KubernetesDeployer,
    destinations=DESTINATIONS | {"token_file"},
)
