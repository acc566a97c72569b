// Passkeys: the browser asks the authenticator, and the server judges the answer.
"use strict";

const csrf = () => document.body.dataset.csrf;

async function ask(path, fields) {
  const response = await fetch(path, {
    method: "POST",
    headers: { "X-CSRF-Token": csrf(), "Content-Type": "application/x-www-form-urlencoded" },
    body: new URLSearchParams(fields),
  });
  const said = await response.json().catch(() => ({ says: "The server does not answer." }));
  if (!response.ok) throw new Error(`${said.says} ${said.hint || ""}`.trim());
  return said;
}

const bytes = (text) => Uint8Array.from(atob(text.replace(/-/g, "+").replace(/_/g, "/")), (char) => char.charCodeAt(0));
const text = (buffer) => btoa(String.fromCharCode(...new Uint8Array(buffer))).replace(/\+/g, "-").replace(/\//g, "_").replace(/=+$/, "");
const known = (list) => (list || []).map((each) => ({ ...each, id: bytes(each.id) }));

function answer(credential) {
  const response = { clientDataJSON: text(credential.response.clientDataJSON) };
  for (const name of ["attestationObject", "authenticatorData", "signature", "userHandle"]) {
    if (credential.response[name]) response[name] = text(credential.response[name]);
  }
  return JSON.stringify({ id: credential.id, rawId: text(credential.rawId), type: credential.type, response, clientExtensionResults: {} });
}

async function logIn(form) {
  const { publicKey } = await ask("/login/passkey/begin", {});
  const options = { ...publicKey, challenge: bytes(publicKey.challenge), allowCredentials: known(publicKey.allowCredentials) };
  const credential = await navigator.credentials.get({ publicKey: options });
  return ask("/login/passkey", { answer: answer(credential), next: form.elements.next.value });
}

async function enrol(form) {
  const { publicKey } = await ask("/account/passkeys/begin", {});
  const options = { ...publicKey, challenge: bytes(publicKey.challenge), user: { ...publicKey.user, id: bytes(publicKey.user.id) }, excludeCredentials: known(publicKey.excludeCredentials) };
  const credential = await navigator.credentials.create({ publicKey: options });
  return ask("/account/passkeys", { answer: answer(credential), name: form.elements.name.value });
}

const WORDS = { NotAllowedError: "The passkey was not used: it was cancelled, or took too long.", InvalidStateError: "This device has a passkey for you already.", SecurityError: "Passkeys do not work at this address." };

document.querySelectorAll("form[data-passkey]").forEach((form) => {
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const problem = form.querySelector("[data-problem]"), button = form.querySelector("button");
    problem.hidden = true;
    button.disabled = true;
    try {
      if (!window.PublicKeyCredential) throw new Error("This browser has no passkeys.");
      const { to } = await (form.dataset.passkey === "login" ? logIn(form) : enrol(form));
      location.assign(to);
    } catch (error) {
      problem.querySelector("span").textContent = WORDS[error.name] || error.message;
      problem.hidden = false;
      problem.setAttribute("role", "alert");
      button.disabled = false;
    }
  });
});
