// Issues for the names given, by the challenge given, or revokes what was issued last; state is in this folder.
const acme = require("acme-client");
const fs = require("fs");
const path = require("path");

const [verb, ...names] = process.argv.slice(2);
const TXT = "http://127.0.0.1:8055";

async function accountKey() {
    if (!fs.existsSync("account.key")) fs.writeFileSync("account.key", await acme.crypto.createPrivateEcdsaKey());
    return fs.readFileSync("account.key");
}

async function publish(authorization, challenge, proof) {
    if (challenge.type === "http-01") return fs.writeFileSync(path.join(process.env.PROOFS, challenge.token), proof);
    return fetch(`${TXT}/set`, { method: "POST", body: `_acme-challenge.${authorization.identifier.value} ${proof}\n` });
}

async function withdraw(authorization, challenge, proof) {
    if (challenge.type === "http-01") return fs.unlinkSync(path.join(process.env.PROOFS, challenge.token));
    return fetch(`${TXT}/clear`, { method: "POST", body: `_acme-challenge.${authorization.identifier.value} ${proof}\n` });
}

async function main() {
    const client = new acme.Client({ directoryUrl: process.env.DIRECTORY, accountKey: await accountKey() });
    if (verb === "revoke") {
        await client.createAccount({ onlyReturnExisting: true });
        return client.revokeCertificate(fs.readFileSync("fullchain.pem"), { reason: 4 });
    }
    const [, csr] = await acme.crypto.createCsr({ altNames: names });
    const chain = await client.auto({
        csr, email: "interop@npm.test", termsOfServiceAgreed: true, challengePriority: [verb],
        skipChallengeVerification: true, challengeCreateFn: publish, challengeRemoveFn: withdraw,
    });
    return fs.writeFileSync("fullchain.pem", chain);
}

main().catch((error) => { console.error(error.stack || String(error)); process.exit(1); });
