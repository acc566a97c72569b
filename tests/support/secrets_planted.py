"""The secrets that the suite's fixtures use: all carry one mark, so that a single search finds any of them anywhere.

The mark is letters and digits only: it is the same in JSON, in an address and in a shell; what base64 and hex make of
it is known beforehand (`forms`). A new fixture that needs a secret plants one here.
"""

from __future__ import annotations

import base64
from typing import Final

MARK: Final = "hQ7plantedX4w"
NAMES: Final[dict[str, str]] = {}  # what each planted text is, to be told instead of it


def plant(name: str) -> str:
    """A new text that must be in no output."""
    text = f"{MARK}{len(NAMES):03d}k"
    NAMES[text] = name
    return text


def plant_octets(name: str) -> bytes:
    """As many octets as a key for HMAC-SHA-256 has."""
    return plant(name).encode().ljust(32, b"~")


def signing(name: str) -> str:
    """What a web hook is signed with, as Standard Webhooks writes it."""
    return "whsec_" + base64.b64encode(plant_octets(name)).decode()


def forms(text: str) -> tuple[bytes, ...]:
    """How it looks when it is seen: itself, in base64 of either alphabet wherever it begins, in hex."""
    raw = text.encode()
    shifted = [_inner(raw, before) for before in range(3)]
    return (raw, *shifted, raw.hex().encode(), raw.hex().upper().encode())


def _inner(raw: bytes, before: int) -> bytes:
    """The part of its base64 that does not depend on what stands before and after it."""
    whole = base64.b64encode(b"\0" * before + raw)
    start, end = (before * 8 + 5) // 6, (before + len(raw)) * 8 // 6
    return whole[start:end]


# Where certificates come from
DIGICERT_KEY: Final = plant("the API key of DigiCert")
SECTIGO_PASSWORD: Final = plant("the password at Sectigo")
VAULT_TOKEN: Final = f"hvs.{plant('the token of Vault')}"
GLOBALSIGN_KEY: Final = plant("the API key of GlobalSign")
GLOBALSIGN_SECRET: Final = plant("the API secret of GlobalSign")
CLIENT_KEY_PASSWORD: Final = plant("the password of a client's key at a CA")
LONG_EAB_KEY: Final = plant("the EAB key that Pebble knows").ljust(64, "Z")
OWN_EAB_MAC: Final = plant_octets("the EAB key of our own CA")
ISSUER_CREDENTIAL: Final = plant("a credential of an issuer")
OLD_CREDENTIAL: Final = plant("a credential before its change")
NEW_CREDENTIAL: Final = plant("a credential after its change")

# How names are proved
TSIG_KEY: Final = plant_octets("the TSIG key of a zone")
LEXICON_TOKEN: Final = plant("the token of a DNS provider")

# Who is told
HOOK_PATH: Final = f"/hook/{plant('the address of a web hook')}"
HOOK_KEY: Final = signing("the key of a web hook")
NEW_HOOK_KEY: Final = signing("the new key of a web hook")
OLD_HOOK_KEY: Final = signing("the old key of a web hook")
SERVED_HOOK_KEY: Final = signing("the key of a web hook of a real server")
MISPLACED_HOOK_KEY: Final = plant("what is no key of a web hook")
HIDDEN_PATH: Final = f"/services/T000/B000/{plant('the address of a chat hook')}"
KEPT_ADDRESS: Final = f"https://hooks.example/{plant('the address of a kept hook')}"
KEPT_FIRST: Final = plant("the first secret of a kept hook")
KEPT_SECOND: Final = plant("the second secret of a kept hook")
ROUTING_KEY: Final = plant("the routing key of PagerDuty")
GENIE_KEY: Final = plant("the API key of Opsgenie")
SMTP_PASSWORD: Final = plant("the password at a mail server")

# What opens what we keep
KEK_PASSPHRASE: Final = plant("the passphrase of the key file")
PREVIOUS_PASSPHRASE: Final = plant("the previous passphrase of the key file")
NEXT_PASSPHRASE: Final = plant("the next passphrase of the key file")
KEPT_SECRET: Final = plant("a secret in the store").encode()
KEPT_BY_COMMAND: Final = plant("a secret in the store of a command").encode()
SEALED: Final = plant("what a keyring seals").encode()
PKCS12_PASSPHRASE: Final = plant("the passphrase of a PKCS #12 file")
EXPORT_PASSPHRASE: Final = plant("the passphrase of an export")
KEY_PASSPHRASE: Final = plant("the passphrase of a PEM key")
OPENSSL_PASSPHRASE: Final = plant("the passphrase of files for OpenSSL")
ROOT_PASSPHRASE: Final = plant("the passphrase of a root's key")
INTERMEDIATE_PASSPHRASE: Final = plant("the passphrase of an intermediate's key")
CEREMONY_ROOT: Final = plant("the passphrase of a root's key in a ceremony")
CEREMONY_INTERMEDIATE: Final = plant("the passphrase of an intermediate's key in a ceremony")
TOKEN_PIN: Final = plant("the PIN of a PKCS #11 token")
WRONG_PIN: Final = plant("a wrong PIN of a PKCS #11 token")

# How we are reached, and reach
STORE_PASSWORD: Final = plant("the password of the store")
AWAY_PASSWORD: Final = plant("the password of a store that is away")
SETTING: Final = plant("a secret setting")
TYPED_SETTING: Final = plant("a secret setting of a command")
REVEALED: Final = plant("what a Secret holds")
NETRC_PASSWORD: Final = plant("a password in .netrc")
ADDRESS_PASSWORD: Final = plant("the password in an address")
ADDRESS_TOKEN: Final = plant("the token in an address")
TRACED_KEY: Final = plant("the key in a traced address")
HANDLER_TOKEN: Final = plant("a token in the hands of a job")
