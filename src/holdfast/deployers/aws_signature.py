"""AWS Signature Version 4, for a POST to / of one service."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from holdfast.secret import Secret


@dataclass(frozen=True, slots=True, kw_only=True)
class AwsSigner:
    access_key_id: str
    secret_access_key: Secret[str]
    session_token: Secret[str] | None
    region: str
    service: str

    def signed(self, headers: Mapping[str, str], body: bytes, now: datetime) -> dict[str, str]:
        """The headers, `host` among them, and those that prove who sends them. Names are in lower case."""
        stamp = now.strftime("%Y%m%dT%H%M%SZ")
        told = {**headers, "x-amz-date": stamp}
        if self.session_token:
            told["x-amz-security-token"] = self.session_token.reveal()
        names = ";".join(sorted(told))
        lines = [f"{name}:{told[name].strip()}" for name in sorted(told)]
        request = "\n".join(["POST", "/", "", *lines, "", names, hashlib.sha256(body).hexdigest()])
        scope = f"{stamp[:8]}/{self.region}/{self.service}/aws4_request"
        text = f"AWS4-HMAC-SHA256\n{stamp}\n{scope}\n{hashlib.sha256(request.encode()).hexdigest()}"
        proof = hmac.new(self._key(scope), text.encode(), hashlib.sha256).hexdigest()
        who = f"Credential={self.access_key_id}/{scope}, SignedHeaders={names}, Signature={proof}"
        return {**told, "authorization": f"AWS4-HMAC-SHA256 {who}"}

    def _key(self, scope: str) -> bytes:
        key = f"AWS4{self.secret_access_key.reveal()}".encode()
        for part in scope.split("/"):
            key = hmac.new(key, part.encode(), hashlib.sha256).digest()
        return key
