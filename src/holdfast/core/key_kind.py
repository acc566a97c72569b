"""The kinds of key that a certificate may have."""

from __future__ import annotations

from enum import StrEnum


class KeyKind(StrEnum):
    EC_P256 = "ec-p256"
    EC_P384 = "ec-p384"
    RSA_2048 = "rsa-2048"
    RSA_3072 = "rsa-3072"
    RSA_4096 = "rsa-4096"
    ED25519 = "ed25519"
