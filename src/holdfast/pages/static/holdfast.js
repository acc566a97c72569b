// What pages do in the browser: acts without a reload, dialogs, the palette, keys, copying, tables. Without it every page works as plain HTML.
(() => {
  "use strict";
  const $ = (selector, from = document) => from.querySelector(selector);
  const $$ = (selector, from = document) => [...from.querySelectorAll(selector)];
  const page = () => document.getElementById("page");

  // ── Theme ──
  const dark = () => (document.documentElement.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
  function drawTheme() { for (const each of $$("[data-theme-switch] use")) each.setAttribute("href", each.getAttribute("href").replace(/#.*/, dark() ? "#sun" : "#moon")); }
  function switchTheme() {
    const next = dark() ? "light" : "dark";
    document.documentElement.dataset.theme = next;
    document.cookie = `holdfast-theme=${next}; path=/; max-age=31536000; samesite=lax`;
    drawTheme();
  }
  drawTheme();

  // ── Toast ──
  let fading = 0;
  function toast(says, { hint = "", bad = false, undo = null } = {}) {
    const box = document.getElementById("toast"), sprite = $(".i use").getAttribute("href").replace(/#.*/, "");
    const made = document.createElement("div");
    made.className = bad ? "toast bad" : "toast";
    made.setAttribute("role", bad ? "alert" : "status");
    made.innerHTML = `<span class="${bad ? "fail" : "ok"}"><svg class="i" aria-hidden="true"><use href="${sprite}#${bad ? "warning" : "ok"}"/></svg></span><div class="grow"><p></p><p class="hint"></p></div><button class="square" type="button" data-dismiss aria-label="Close this message"><svg class="i" aria-hidden="true"><use href="${sprite}#close"/></svg></button>`;
    $("p", made).textContent = says;
    $(".hint", made).textContent = hint;
    if (undo) made.insertBefore(undoForm(undo), made.lastChild);
    box.replaceChildren(made);
    clearTimeout(fading);
    if (!bad) fade();
  }
  function undoForm(undo) {
    const form = Object.assign(document.createElement("form"), { method: "post", action: `/do/${undo.operation}` });
    form.dataset.act = "";
    for (const [name, value] of Object.entries({ ...undo.fields, csrf: document.body.dataset.csrf, _back: location.pathname + location.search })) form.append(Object.assign(document.createElement("input"), { type: "hidden", name, value }));
    form.append(Object.assign(document.createElement("button"), { className: "btn small", textContent: "Undo" }));
    return form;
  }
  function fade() { fading = setTimeout(() => { const box = document.getElementById("toast"); if (box.matches(":hover, :focus-within")) fade(); else box.replaceChildren(); }, 8000); }
  if ($("#toast .toast")) fade();

  // ── Acts ──
  async function act(form, button) {
    const label = button?.textContent;
    if (button) { button.disabled = true; button.lastChild.textContent = label.trim().replace(/…$/, "") + "…"; }
    for (const each of $$("[aria-invalid]", form)) each.removeAttribute("aria-invalid");
    for (const each of $$(".error[data-made]", form)) each.remove();
    try {
      const answer = await fetch(button?.getAttribute("formaction") || form.getAttribute("action"), { method: "POST", body: new URLSearchParams(new FormData(form, button?.name ? button : undefined)), headers: { Accept: "application/json" }, credentials: "same-origin" });
      const told = await answer.json().catch(() => ({ says: "The server gave no answer that can be read.", hint: `Status ${answer.status}.` }));
      if (answer.ok) {
        const row = (form.closest("dialog") ? opener : form)?.closest?.("[data-row]");
        form.closest("dialog")?.close();
        toast(told.says || "Done.", { undo: told.undo });
        if (row) acted(row, told.says);
        if (told.go) { location.assign(told.go); return; }
        form.dispatchEvent(new CustomEvent("holdfast:done", { bubbles: true, detail: told }));
        await window.holdfast?.freshen(true);
      } else if (told.fields && mistakes(form, told.fields)) { /* said beside the fields */ }
      else toast(told.says || "This did not work.", { hint: told.hint || "", bad: true });
    } catch { toast("No replica answers.", { hint: "Nothing was changed as far as is known. Try again.", bad: true }); }
    finally { if (button?.isConnected) { button.disabled = false; button.lastChild.textContent = label; } }
  }
  // A row that was acted on keeps its place until the next load, and says what was done.
  function acted(row, says) { row.classList.add("acted"); const line = $(".words-box p", row); if (line && says) line.textContent = says; }
  function mistakes(form, fields) {
    let first = null;
    for (const [name, text] of Object.entries(fields)) {
      const field = form.elements[name];
      if (!field || field.type === "hidden") { toast(text, { bad: true }); continue; }
      field.setAttribute("aria-invalid", "true");
      const said = document.createElement("p");
      said.className = "error"; said.dataset.made = ""; said.id = `e-${name}`; said.textContent = text;
      field.setAttribute("aria-describedby", said.id);
      field.after(said);
      first ||= field;
    }
    first?.focus();
    return first;
  }
  document.addEventListener("submit", (event) => {
    const form = event.target;
    if (form.dataset.confirm && !("confirmed" in form.dataset)) { event.preventDefault(); confirmFirst(form, event.submitter); return; }
    delete form.dataset.confirmed;
    if (!form.matches("[data-act]")) return;
    event.preventDefault();
    act(form, event.submitter);
  });
  function confirmFirst(form, button) {
    const box = document.getElementById("ask-in"), title = document.createElement("h2"), acts = document.createElement("div");
    title.id = "ask-title"; title.textContent = form.dataset.confirm; acts.className = "acts";
    const cancel = Object.assign(document.createElement("button"), { type: "button", className: "btn", textContent: "Cancel" });
    const go = Object.assign(document.createElement("button"), { type: "button", className: "btn primary", textContent: button.textContent.trim().replace(/…$/, "") });
    cancel.dataset.close = "";
    go.addEventListener("click", () => { document.getElementById("ask").close(); form.dataset.confirmed = ""; form.requestSubmit(button); });
    acts.append(cancel, go); box.replaceChildren(title, acts);
    openDialog("ask", button);
  }

  // ── Dialogs, menus, copying, twins ──
  let opener = null;
  function openDialog(id, from) { const found = document.getElementById(id); if (!found || found.open) return; opener = from || document.activeElement; found.showModal(); found.addEventListener("close", () => opener?.isConnected && opener.focus(), { once: true }); if (id === "palette") startPalette(); }
  document.addEventListener("click", async (event) => {
    const hit = (selector) => event.target.closest(selector);
    let found;
    if ((found = hit("[data-open]"))) openDialog(found.dataset.open, found);
    else if ((found = hit("[data-close]"))) found.closest("dialog").close();
    else if ((found = hit("[data-dismiss]"))) found.closest(".toast").remove();
    else if (hit("[data-theme-switch]")) switchTheme();
    else if ((found = hit("[data-copy]"))) {
      await navigator.clipboard?.writeText(found.dataset.copy).catch(() => {});
      const before = found.getAttribute("aria-label"); toast("Copied."); found.setAttribute("aria-label", "Copied"); setTimeout(() => found.setAttribute("aria-label", before || "Copy"), 2000);
    } else if ((found = hit("[data-twin]"))) {
      const on = found.getAttribute("aria-pressed") !== "true";
      found.setAttribute("aria-pressed", String(on));
      document.getElementById(`${found.dataset.twin}-table`).hidden = !on;
      document.getElementById(`${found.dataset.twin}-chart`).hidden = on;
    } else if ((found = hit("[data-show-moved]"))) { event.preventDefault(); location.reload(); }
    else if (event.target.matches("dialog")) event.target.close();
    for (const each of $$("details.menu[open]")) if (!each.contains(event.target)) each.open = false;
  });
  document.addEventListener("input", (event) => {
    const typed = event.target.closest("[data-must]");
    if (typed) $("[data-when-equal]", typed.form).disabled = typed.value.trim() !== typed.dataset.must;
    const mirror = event.target.dataset?.mirror;
    if (mirror) document.getElementById(mirror).value = event.target.value;
  });
  document.addEventListener("change", (event) => {
    const found = event.target;
    if (found.matches("[data-submit-on-change]")) found.form.requestSubmit();
    if (found.matches("[data-pick], [data-pick-all]")) picked(found);
    if (found.id === "single-keys") localStorage.setItem("holdfast-keys", found.checked ? "on" : "off");
  });

  // ── Tables: selecting ──
  let lastPick = null;
  function picked(box, range = false) {
    const all = $$("[data-pick]");
    if (box.matches("[data-pick-all]")) for (const each of all) each.checked = box.checked;
    else if (range && lastPick) { const [a, b] = [all.indexOf(lastPick), all.indexOf(box)].sort((x, y) => x - y); for (const each of all.slice(a, b + 1)) each.checked = box.checked; }
    lastPick = box;
    const chosen = all.filter((each) => each.checked);
    for (const each of all) each.closest("tr").classList.toggle("selected", each.checked);
    const bar = document.getElementById("bulk");
    if (bar) { bar.hidden = !chosen.length; $("#bulk-number").textContent = `${chosen.length} selected`; }
  }
  document.addEventListener("click", (event) => { const box = event.target.closest("[data-pick]"); if (box && event.shiftKey) picked(box, true); }, true);
  document.addEventListener("click", (event) => { if (event.target.closest("[data-clear-picks]")) { for (const each of $$("[data-pick], [data-pick-all]")) each.checked = false; const one = $("[data-pick]"); if (one) picked(one); } });

  // ── Keys ──
  const single = () => localStorage.getItem("holdfast-keys") !== "off";
  const box = document.getElementById("single-keys");
  if (box) box.checked = single();
  const rows = () => $$("#page [data-row]");
  const currentRow = () => $("#page [data-row].current");
  function moveRow(step) {
    const all = rows();
    if (!all.length) return;
    const at = all.indexOf(currentRow()), next = all[Math.max(0, Math.min(all.length - 1, at + step))] || all[0];
    for (const each of all) each.classList.toggle("current", each === next);
    next.scrollIntoView({ block: "nearest" });
    const focus = $("a.name, h3 a, a", next) || $("button, input", next);
    focus?.focus({ preventScroll: true });
  }
  function submitIn(row, selector) { const form = $(selector, row || document); if (!form) return false; act(form, $("button", form)); return true; }
  let chord = 0;
  document.addEventListener("keydown", (event) => {
    if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "k") { event.preventDefault(); openDialog("palette"); return; }
    if (event.ctrlKey || event.metaKey || event.altKey || !single()) return;
    if (event.target.closest("input:not([type=checkbox]), textarea, select, dialog")) return;
    if (event.key === "Escape") { $("[data-clear-picks]")?.click(); return; }
    if (chord && Date.now() - chord < 1500) { chord = 0; const to = $(`#rail [data-go="${CSS.escape(event.key)}"]`); if (to) { event.preventDefault(); location.assign(to.href); return; } }
    const row = currentRow();
    const keys = {
      "/": () => ($("#page [data-filter]") || null)?.focus() ?? openDialog("palette"),
      "?": () => openDialog("keys"), g: () => { chord = Date.now(); }, j: () => moveRow(1), k: () => moveRow(-1), p: () => window.holdfast?.pause(),
      Enter: () => { if (!row || event.target.closest("a, button, summary, input")) return false; if (row.dataset.href) location.assign(row.dataset.href); },
      x: () => { const pick = row && $("[data-pick]", row); if (!pick) return false; pick.checked = !pick.checked; picked(pick); },
      r: () => submitIn(row, "form[action='/do/certificates.renew']"), q: () => submitIn(row, "form[action^='/do/notifications.requeue']"),
      e: () => { const to = row?.dataset.href ? `${row.dataset.href}/explain` : document.body.dataset.explain || $("[data-explain]")?.href; if (!to) return false; location.assign(to); },
      s: () => { const to = row && $(".snooze", row); if (!to) return false; to.click(); },
      n: () => { const to = row && $("[data-ask]", row); if (!to) return false; to.click(); },
      y: () => { $("[data-copy-command]")?.click(); },
    };
    if (keys[event.key] && keys[event.key]() !== false) event.preventDefault();
  });
  document.addEventListener("keydown", (event) => {
    const cell = event.target.closest?.("svg.chart a");
    const step = { ArrowLeft: -7, ArrowRight: 7, ArrowUp: -1, ArrowDown: 1 }[event.key];
    if (!cell || !step) return;
    const all = $$("a", cell.closest("svg")), next = all[all.indexOf(cell) + step];
    if (next) { event.preventDefault(); cell.setAttribute("tabindex", "-1"); next.setAttribute("tabindex", "0"); next.focus(); }
  });

  // ── Dialogs made by the server ──
  document.addEventListener("click", async (event) => {
    const found = event.target.closest("[data-ask]");
    if (!found) return;
    event.preventDefault();
    const picks = $$("[data-pick]:checked").map((each) => `&ref=${encodeURIComponent(each.value)}`).join("");
    const address = found.dataset.ask + (found.hasAttribute("data-with-picks") ? picks : "");
    const answer = await fetch(address, { credentials: "same-origin" }).catch(() => null);
    if (!answer?.ok) { toast("This did not work.", { bad: true }); return; }
    $("#ask-in").innerHTML = await answer.text();
    openDialog("ask", found);
    $("#ask [autofocus]")?.focus();
  });

  // ── Live validation and plans ──
  let waiting = 0;
  document.addEventListener("input", (event) => {
    const form = event.target.closest("form[data-plan]");
    if (!form) return;
    clearTimeout(waiting);
    waiting = setTimeout(async () => {
      const answer = await fetch(form.dataset.plan, { method: "POST", body: new URLSearchParams(new FormData(form)), credentials: "same-origin" }).catch(() => null);
      if (answer && (answer.ok || answer.status === 422)) $("#plan").innerHTML = await answer.text();
    }, form.dataset.planWait ? Number(form.dataset.planWait) : 400);
  });

  // ── What if: a slider and its number field are one value; the outlook follows while they move ──
  let supposing = 0, latest = 0;
  document.addEventListener("input", (event) => {
    const form = event.target.closest("form[data-what-if]");
    if (!form) return;
    const field = event.target.dataset.slides ? document.getElementById(event.target.dataset.slides) : null;
    if (field) field.value = event.target.value;
    else if (event.target.id) { const slider = $(`[data-slides="${event.target.id}"]`, form); if (slider) slider.value = event.target.value || slider.max; }
    clearTimeout(supposing);
    supposing = setTimeout(() => suppose(form), 120);
  });
  async function suppose(form) {
    const given = new URLSearchParams([...new FormData(form)].filter(([, value]) => value && value !== "0"));
    const address = given.size ? `/forecast?${given}` : "/forecast", mine = ++latest;
    const answer = await fetch(address, { headers: { "X-Live": "1" }, credentials: "same-origin" }).catch(() => null);
    if (!answer || mine !== latest) return;
    const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
    if (!answer.ok) { toast($("h1", fresh)?.textContent || "This did not work.", { bad: true }); return; }
    history.replaceState(null, "", address);
    for (const id of ["outlook", "outlook-chart", "outlook-limits"]) {
      const target = document.getElementById(id), wanted = fresh.getElementById(id);
      if (target && wanted) await htmx.swap({ text: wanted.innerHTML, target, swap: "innerMorph", sourceElement: target });
    }
    if (document.activeElement?.id === "f-issuer") { // another issuer asks for other fields; a slider that is held is not replaced
      const wanted = $("form[data-what-if]", fresh); if (wanted) form.replaceChildren(...wanted.childNodes); document.getElementById("f-issuer")?.focus();
    }
  }

  // ── Palette ──
  let asked = 0;
  const input = () => $("#palette input"), list = () => document.getElementById("palette-results");
  function startPalette() { const field = input(); field.value = ""; field.focus(); search(""); }
  async function search(text) {
    const mine = ++asked;
    const answer = await fetch(`/palette?q=${encodeURIComponent(text)}`, { credentials: "same-origin" }).catch(() => null);
    if (!answer?.ok || mine !== asked) return;
    list().innerHTML = await answer.text();
    choose(0);
  }
  const options = () => $$("[role='option']", list());
  function choose(at) {
    const all = options();
    all.forEach((each, n) => each.setAttribute("aria-selected", String(n === at)));
    if (all[at]) { input().setAttribute("aria-activedescendant", all[at].id); all[at].scrollIntoView({ block: "nearest" }); }
  }
  const chosen = () => options().findIndex((each) => each.getAttribute("aria-selected") === "true");
  function run(option) {
    if (!option) return;
    if (option.dataset.href) { location.assign(option.dataset.href); return; }
    if (option.dataset.copyText) { navigator.clipboard?.writeText(option.dataset.copyText).catch(() => {}); document.getElementById("palette").close(); toast("Copied."); return; }
    const form = $("form", option);
    if (form) { document.getElementById("palette").close(); act(form, null); }
  }
  const palette = document.getElementById("palette");
  palette?.addEventListener("input", (event) => search(event.target.value));
  palette?.addEventListener("click", (event) => { const option = event.target.closest("[role='option']"); if (option) { event.preventDefault(); run(option); } });
  palette?.addEventListener("keydown", (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step) { event.preventDefault(); const all = options(); choose((chosen() + step + all.length) % all.length); }
    if (event.key === "Enter") { event.preventDefault(); run(options()[chosen()]); }
  });
})();
