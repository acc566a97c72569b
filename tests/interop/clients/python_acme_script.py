"""Issues for the names given, by the challenge given, or revokes what was issued last; runs beside the library."""
# mypy: ignore-errors

import os
import sys
import urllib.request
from pathlib import Path

import josepy
from cryptography import x509
from cryptography.hazmat.primitives import serialization as pem
from cryptography.hazmat.primitives.asymmetric import ec

from acme import challenges, client, crypto_util, errors, messages

KEY = Path("account.key")
CHAIN = Path("fullchain.pem")
TYPES = {"http-01": challenges.HTTP01, "dns-01": challenges.DNS01}


def main(verb: str, *names: str) -> None:
    acme = connect()
    if verb == "revoke":
        acme.revoke(x509.load_pem_x509_certificate(CHAIN.read_bytes()), 4)
        return
    order = acme.new_order(crypto_util.make_csr(key_pem(new_key()), list(names)))
    for authorization in order.authorizations:
        [challenge] = [each for each in authorization.body.challenges if isinstance(each.chall, TYPES[verb])]
        publish(acme, authorization.body.identifier.value, challenge)
        acme.answer_challenge(challenge, challenge.response(acme.net.key))
    CHAIN.write_text(acme.poll_and_finalize(order).fullchain_pem)


def connect() -> client.ClientV2:
    if not KEY.exists():
        KEY.write_bytes(key_pem(new_key()))
    key = josepy.JWKEC(key=pem.load_pem_private_key(KEY.read_bytes(), None))
    network = client.ClientNetwork(key, alg=josepy.ES256, verify_ssl=os.environ["TRUST"])
    acme = client.ClientV2(client.ClientV2.get_directory(os.environ["DIRECTORY"], network), network)
    wish = messages.NewRegistration.from_data(email="interop@python.test", terms_of_service_agreed=True)
    try:
        acme.new_account(wish)
    except errors.ConflictError as known:
        acme.query_registration(messages.RegistrationResource(uri=known.location, body=messages.Registration()))
    return acme


def publish(acme: client.ClientV2, name: str, challenge: messages.ChallengeBody) -> None:
    if isinstance(challenge.chall, challenges.HTTP01):
        proof = challenge.chall.validation(acme.net.key)
        (Path(os.environ["PROOFS"]) / challenge.chall.encode("token")).write_text(proof)
    else:
        line = f"{challenge.chall.validation_domain_name(name)} {challenge.chall.validation(acme.net.key)}\n"
        urllib.request.urlopen("http://127.0.0.1:8055/set", data=line.encode()).close()


def new_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(pem.Encoding.PEM, pem.PrivateFormat.PKCS8, pem.NoEncryption())


if __name__ == "__main__":
    main(*sys.argv[1:])
