// Live data: one stream for each browser. The tab that holds the lock reads it and tells the others; every tab then asks
// for its own page again and puts what changed in place. Without locks each tab asks every 15 seconds.
(() => {
  "use strict";
  const button = document.getElementById("live");
  if (!button) return;
  const word = document.getElementById("live-word");
  const root = document.documentElement;
  const channel = "BroadcastChannel" in window ? new BroadcastChannel("holdfast-live") : null;
  let last = document.body.dataset.event || "", source = null, paused = false, lost = 0, due = 0, timer = 0, asking = false, release = null;

  // The server's clock: everything that counts down goes by it.
  let offset = Number(document.body.dataset.now) - Date.now();
  const now = () => Date.now() + offset;
  const clock = (at) => new Date(at).toISOString().slice(11, 19);

  function say(state, text) {
    if (button.dataset.state !== state) word.textContent = text;
    else if (word.textContent !== text) word.textContent = text;
    button.dataset.state = state;
    root.classList.toggle("stale", state === "reconnecting");
  }

  // ── Countdowns ──
  const units = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
  function span(seconds, most) {
    let left = Math.max(0, Math.floor(seconds));
    if (left < 1) return "0 s";
    const first = units.findIndex(([size]) => left >= size);
    if (first === 2 && left >= 600 && most === 2) most = 1;
    const parts = [];
    for (const [size, name] of units.slice(first, first + most)) {
      const whole = Math.floor(left / size);
      left -= whole * size;
      if (whole || !parts.length) parts.push(`${whole} ${name}`);
    }
    return parts.join(" ");
  }
  function tick() {
    const at = now();
    const shown = document.getElementById("clock");
    if (shown) shown.textContent = `${clock(at)} UTC`;
    if (root.classList.contains("stale")) return; // an old truth is not counted on as if it were new
    for (const each of document.querySelectorAll("time[data-left]")) {
      const rest = (Date.parse(each.dateTime) - at) / 1000;
      const text = rest > 0 ? span(rest, Number(each.dataset.left)) : "due";
      if (each.textContent !== text) each.textContent = text;
    }
    for (const each of document.querySelectorAll("time[data-ago]")) {
      const text = span((at - Date.parse(each.dateTime)) / 1000, 2);
      if (each.textContent !== text) each.textContent = text;
    }
  }
  setInterval(tick, 1000);

  // ── Asking for the page again ──
  const busy = () => document.querySelector("dialog[open]") || document.querySelector("#page :is(input, textarea, select):focus") || document.querySelector("tr.selected") || document.querySelector("[data-still]");
  async function freshen(force) {
    if (asking || (paused && !force) || document.hidden) { due = 1; return; }
    if (!force && busy()) { due = 1; return; }
    asking = true; due = 0;
    try {
      const answer = await fetch(location.href, { headers: { "X-Live": "1" }, credentials: "same-origin" });
      if (answer.status === 401 || answer.redirected) { location.reload(); return; }
      if (!answer.ok) return;
      const text = await answer.text();
      const fresh = new DOMParser().parseFromString(text, "text/html");
      offset = Number(fresh.body.dataset.now) - Date.now();
      if (!force && busy()) { due = 1; return; }
      keep(fresh);
      await put("rail", fresh); await put("page", fresh);
      document.title = fresh.title;
      document.dispatchEvent(new CustomEvent("holdfast:fresh"));
    } catch { /* the stream says that the server is away */ } finally { asking = false; }
  }
  // Rows keep their place: the order of a list changes only when the person asks for it.
  function keep(fresh) {
    for (const list of document.querySelectorAll("#page [data-keep-order]")) {
      const other = fresh.getElementById(list.id);
      if (!other) continue;
      const here = [...list.children].map((row) => row.id), there = [...other.children].map((row) => row.id);
      if (here.join() === there.join()) continue;
      const moved = there.filter((id, n) => here[n] !== id).length || 1;
      const rows = new Map([...other.children].map((row) => [row.id, row]));
      other.replaceChildren(...[...list.children].map((row) => rows.get(row.id) || row.cloneNode(true)));
      const note = fresh.getElementById("moved");
      if (note) { note.hidden = false; note.querySelector("b").textContent = moved === 1 ? "1 row" : `${moved} rows`; }
    }
  }
  async function put(id, fresh) {
    const target = document.getElementById(id), wanted = fresh.getElementById(id);
    if (!target || !wanted || target.isEqualNode(wanted)) return;
    for (const each of target.querySelectorAll("details[open][id]")) fresh.getElementById(each.id)?.setAttribute("open", "");
    for (const each of target.querySelectorAll("[data-twin][aria-pressed='true']")) {
      const twin = each.dataset.twin;
      fresh.getElementById(`${twin}-table`)?.removeAttribute("hidden");
      fresh.getElementById(`${twin}-chart`)?.setAttribute("hidden", "");
      wanted.querySelector(`[data-twin='${twin}']`)?.setAttribute("aria-pressed", "true");
    }
    const current = target.querySelector(".current")?.id;
    if (current) fresh.getElementById(current)?.classList.add("current");
    await htmx.swap({ text: wanted.innerHTML, target, swap: "innerMorph", sourceElement: target });
  }
  function soon() { clearTimeout(timer); timer = setTimeout(() => freshen(false), 700 + Math.random() * 500); }
  setInterval(() => { if (due && !busy()) freshen(false); }, 2000);

  // ── The stream ──
  function heard(id, replica) {
    if (id) last = id;
    if (replica) document.getElementById("replica").textContent = replica;
    lost = 0;
    if (!paused) say("live", "Live");
  }
  function open() {
    if (source || paused) return;
    source = new EventSource(`/live?after=${encodeURIComponent(last)}`);
    source.addEventListener("hello", (event) => {
      const replica = JSON.parse(event.data).replica;
      const back = lost;
      heard("", replica);
      channel?.postMessage({ replica });
      if (back) freshen(false);
    });
    source.onmessage = (event) => {
      heard(event.lastEventId);
      channel?.postMessage({ id: event.lastEventId });
      soon();
    };
    source.onerror = () => {
      lost ||= Date.now();
      channel?.postMessage({ lost });
      gone();
      if (source.readyState === EventSource.CLOSED) { source.close(); source = null; setTimeout(open, 2000); }
    };
  }
  function gone() { if (!paused) say("reconnecting", `Reconnecting, as of ${clock(lost + offset)}`); }
  function close() { source?.close(); source = null; }
  channel?.addEventListener("message", (event) => {
    if (source || paused) return;
    if (event.data.lost) { lost = event.data.lost; gone(); return; }
    heard(event.data.id, event.data.replica);
    if (event.data.id) soon();
  });
  function lead() {
    if (!navigator.locks || !channel) { poll(); return; }
    say("live", "Live");
    navigator.locks.request("holdfast-live", () => new Promise((done) => { release = done; open(); }));
  }
  function poll() { say("polling", "Every 15 s"); setInterval(() => { if (!paused) freshen(false); }, 15000); }
  function pause(on) {
    paused = on;
    if (on) { close(); say("paused", "Paused"); return; }
    if (!navigator.locks || !channel) { say("polling", "Every 15 s"); freshen(true); return; }
    say("live", "Live");
    if (release) open();
    freshen(true);
  }
  button.addEventListener("click", () => pause(!paused));
  document.addEventListener("visibilitychange", () => { if (!document.hidden && due) freshen(false); });
  addEventListener("pagehide", () => { close(); release?.(); });
  window.holdfast = { freshen, pause: () => pause(!paused), now };
  lead();
})();
