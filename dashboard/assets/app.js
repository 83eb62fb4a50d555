// Keeps a page fresh, and adds keys. Every page can be read and used without it: nothing here decides or sends anything that a
// form does not. No framework, nothing inline, no number of an effect's is read as one.
const body = document.body;
const one = (what, inside = document) => inside.querySelector(what);
const all = (what, inside = document) => [...inside.querySelectorAll(what)];
const place = (path) => new URL(body.dataset.root + path, location.href);
const home = new URL(body.dataset.home, location.href);

// What this browser was told to remember. A browser that refuses to is asked again each time.
const memory = {
  get(name, otherwise) {
    try { return localStorage.getItem(`aftercommit-${name}`) ?? otherwise; } catch { return otherwise; }
  },
  set(name, value) {
    try { localStorage.setItem(`aftercommit-${name}`, value); } catch { /* then it holds for this page */ }
  },
};
const prefs = {
  live: Number(memory.get("live", "5")),
  zone: memory.get("zone", "utc"),
  keys: memory.get("keys", "on"),
};

// Times. The database's clock is the page's; this browser's only counts on from it.
let [shownAt, since] = [Date.parse(body.dataset.now), performance.now()];
const now = () => shownAt + performance.now() - since;
const span = (seconds) => {
  const whole = Math.floor(seconds + 0.5);
  if (whole < 120) return `${whole} s`;
  if (whole < 7200) return `${Math.round(whole / 60)} min`;
  if (whole < 172800) return `${Math.round(whole / 3600)} h`;
  return `${Math.round(whole / 86400)} d`;
};
const away = (at) => {
  const distance = (at - now()) / 1000;
  if (Math.abs(distance) < 1) return "now";
  return distance < 0 ? `${span(-distance)} ago` : `in ${span(distance)}`;
};
const two = (n) => String(n).padStart(2, "0");
const local = (at) => {
  const date = new Date(at);
  const offset = -date.getTimezoneOffset();
  const sign = offset < 0 ? "-" : "+";
  const zone = `${sign}${two(Math.floor(Math.abs(offset) / 60))}:${two(Math.abs(offset) % 60)}`;
  return `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())} ` +
    `${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())} ${zone}`;
};
const say = (element, words) => { if (element.textContent !== words) element.textContent = words; };
function times() {
  for (const element of all("[data-away]")) {
    const at = Date.parse(element.dataset.away);
    if (!Number.isNaN(at)) say(element, away(at));
  }
  for (const element of all("time[datetime]")) {
    const at = Date.parse(element.dateTime);
    element.dataset.utc ??= element.textContent;
    say(element, prefs.zone === "local" && !Number.isNaN(at) ? local(at) : element.dataset.utc);
  }
}

// Counts: those on the page are replaced where they stand; a list never moves under the pointer.
const grouped = (n) => String(n).replace(/\B(?=(\d{3})+$)/g, ",");
function sum(counts, states, of) {
  const wanted = states.split(" ");
  return counts.reduce((n, count) => (wanted.includes(count.state) && (!of || count.downstream === of) ? n + count.effects : n), 0);
}
function showCounts({ counts, as_of }) {
  for (const element of all("[data-count]")) {
    const n = sum(counts, element.dataset.count, element.dataset.of);
    say(element, grouped(n));
    element.closest(".tile")?.classList.toggle("zero", n === 0);
    if (element.matches(".nav b")) element.className = n ? element.dataset.count : "";
  }
  const news = one("#news");
  if (news) {
    const more = sum(counts, news.dataset.watch, news.dataset.of) - Number(news.dataset.base);
    news.hidden = more <= 0;
    if (more > 0) say(one("a", news), `${grouped(more)} new — show`);
  }
  const time = one("#as-of");
  if (time) {
    time.dateTime = as_of;
    time.dataset.utc = `${as_of.slice(0, 19).replace("T", " ")} UTC`;
  }
  times();
}

// Regions that the server renders anew: replaced where they changed, unless somebody is at work in them.
const plain = (html) => html.replace(/(data-away="[^"]*">)[^<]*/g, "$1");
const rendered = new Map(all("[data-live]").map((region) => [region.id, plain(region.outerHTML)]));
// A page that has banners alone to be kept fresh is not asked for at every change, and one with a form to be sent not at all: to show
// what a form would do may take the server long.
const calm = [...rendered.keys()].every((id) => id === "banners");
let dirty = false;
let refreshing = false;
addEventListener("input", (event) => { dirty ||= Boolean(event.target.closest?.("main form[method=post]")); });
function isInUse(region) {
  const selection = getSelection();
  const selects = selection && !selection.isCollapsed && region.contains(selection.anchorNode);
  const typing = document.activeElement?.matches("input, textarea, select") && region.contains(document.activeElement);
  return selects || typing;
}
function replace(region, fresh) {
  const open = all("details[open][id]", region).map((details) => details.id);
  const active = region.contains(document.activeElement) ? document.activeElement : null;
  region.replaceWith(document.adoptNode(fresh));
  for (const id of open) one(`#${CSS.escape(id)}`, fresh)?.setAttribute("open", "");
  if (active) {
    const again = active.id ? `#${CSS.escape(active.id)}` : `[href="${CSS.escape(active.getAttribute("href") ?? "")}"]`;
    one(again, fresh)?.focus({ preventScroll: true });
  }
  prepare(fresh);
}
// Whether all of it is shown now; what is not is tried again with the next look.
async function refresh() {
  if (dirty || rendered.size === 0 || (calm && one("main form[method=post]"))) return true;
  refreshing = true;
  let whole = true;
  try {
    const answer = await fetch(location.href, { headers: { accept: "text/html", "x-aftercommit-refresh": "1" }, redirect: "error" });
    if (!answer.ok) return false;
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    if (page.body.dataset.now) [shownAt, since] = [Date.parse(page.body.dataset.now), performance.now()];
    for (const [id, before] of rendered) {
      const [region, fresh] = [document.getElementById(id), page.getElementById(id)];
      const html = fresh && plain(fresh.outerHTML);
      if (!region || !html || html === before) continue;
      if (isInUse(region)) {
        whole = false;
        continue;
      }
      rendered.set(id, html);
      replace(region, fresh);
    }
    times();
    return whole;
  } catch {
    return false;
  } finally { refreshing = false; }
}

// Live: events where they come through, else asking. Nothing of it while nobody looks.
const badge = one("#live");
let [events, timer, latest, lastShown] = [null, null, null, 0];
// Something changed that is not shown yet.
let pending = false;
const sinceShown = () => performance.now() - lastShown + 50;
// What is in no count (a pause, a worker that fell silent) shows a little later.
const isDue = () => sinceShown() >= prefs.live * 1000 && ((pending && !calm) || sinceShown() >= Math.max(15, 3 * prefs.live) * 1000);
function status(words, on) {
  if (!badge) return;
  badge.hidden = false;
  badge.toggleAttribute("data-on", on);
  say(one("span", badge), words);
}
function heard(counts) {
  pending ||= JSON.stringify(counts.counts) !== JSON.stringify(latest?.counts);
  latest = counts;
  status("live", true);
  if (isDue()) show();
}
async function show() {
  // What came in meanwhile is shown when this look is through.
  if (refreshing) return;
  lastShown = performance.now();
  pending = false;
  if (latest) showCounts(latest);
  if (!await refresh()) pending = true;
}
async function poll() {
  try {
    const answer = await fetch(place("api/v1/counts"), { headers: { accept: "application/json" } });
    if (answer.ok) heard(await answer.json());
    else status("no answer", false);
  } catch { status("no answer", false); }
}
function listen() {
  events = new EventSource(place("api/v1/events"));
  events.addEventListener("counts", (event) => heard(JSON.parse(event.data)));
  events.addEventListener("away", () => status("no answer", false));
  events.addEventListener("error", () => {
    status("no answer", false);
    // It will not come again by itself: a proxy that lets no events through, or a session that ended.
    if (events?.readyState === EventSource.CLOSED) events = null;
  });
}
function rest() {
  events?.close();
  clearInterval(timer);
  events = timer = null;
}
function start() {
  rest();
  if (!prefs.live) return status("live is off", false);
  if (document.hidden) return undefined;
  // Whoever comes back has missed what happened meanwhile.
  pending = true;
  listen();
  const fast = one("[data-fast]") ? 1 : prefs.live;
  timer = setInterval(() => {
    if (!events) poll();
    // What one effect does is in no count.
    if (isDue() || one("[data-effect], [data-fast]")) show();
    else if (latest && sinceShown() >= prefs.live * 1000) showCounts(latest);
  }, fast * 1000);
  return undefined;
}
document.addEventListener("visibilitychange", () => (document.hidden ? rest() : start()));
addEventListener("pagehide", rest);
addEventListener("pageshow", (event) => {
  if (!event.persisted) return;
  dirty = false;
  for (const button of all("button[data-sent]")) { button.disabled = false; delete button.dataset.sent; }
  start();
});

// One deed per click: what is sent twice would be told as stale.
addEventListener("submit", (event) => {
  if (event.target.method !== "post") return;
  const button = event.submitter ?? one("button", event.target);
  setTimeout(() => { if (button) { button.disabled = true; button.dataset.sent = ""; } });
});

// Copying, also where the connection is not secure and the clipboard is refused.
function toast(words) {
  one(".toast")?.remove();
  const note = document.createElement("p");
  note.className = "toast";
  note.setAttribute("role", "status");
  note.textContent = words;
  body.append(note);
  setTimeout(() => note.remove(), 2000);
}
async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const field = document.createElement("textarea");
    field.className = "sr";
    field.value = text;
    body.append(field);
    field.select();
    document.execCommand("copy");
    field.remove();
  }
  toast("Copied");
}
addEventListener("click", (event) => {
  const button = event.target.closest?.("[data-copy]");
  if (button) copy(button.dataset.copy);
  for (const details of all("details.pop[open]")) if (!details.contains(event.target)) details.open = false;
});

// Ticks: Shift takes all up to the last one.
const ticks = () => all("td.tick input");
let lastTick = null;
function counted() {
  const words = one("#ticked");
  const n = ticks().filter((tick) => tick.checked).length;
  if (words) say(words, n ? `${n} ticked` : "");
}
function ticked(tick, range) {
  const list = ticks();
  const [from, to] = [list.indexOf(lastTick), list.indexOf(tick)].sort((a, b) => a - b);
  if (range && from >= 0) for (const between of list.slice(from, to + 1)) between.checked = tick.checked;
  lastTick = tick;
  counted();
}
addEventListener("click", (event) => {
  if (event.target.matches?.("td.tick input")) ticked(event.target, event.shiftKey);
  if (event.target.id === "tick-all") {
    for (const tick of ticks()) tick.checked = event.target.checked;
    counted();
  }
});

// Keys
const rows = () => all("[data-row]");
const current = () => rows().findIndex((row) => row.contains(document.activeElement));
function move(by) {
  const list = rows();
  if (!list.length) return;
  const at = current();
  const row = list[Math.min(list.length - 1, Math.max(0, at < 0 ? (by > 0 ? 0 : list.length - 1) : at + by))];
  const target = one("a.row", row) ?? row;
  if (target === row) row.tabIndex = -1;
  target.focus({ preventScroll: true });
  row.scrollIntoView({ block: "nearest" });
  for (const other of list) other.classList.toggle("here", other === row);
}
function retry() {
  const way = one("[data-key=retry]");
  const link = way ?? one("a.row", rows()[current()] ?? document.createElement("p"));
  if (way) way.click();
  else if (link?.pathname.match(/\/effects\/\d+$/)) location.assign(`${link.href}/retry`);
}
function tick(range) {
  const box = one("td.tick input", rows()[current()] ?? document.createElement("p"));
  if (!box) return;
  box.checked = !box.checked;
  ticked(box, range);
}
const pages = { o: home, e: place("effects"), d: place("doubt"), f: place("failures"), s: place("downstreams") };
const help = one("#help");
const acts = {
  "/": () => (one("#q") ?? one("#find"))?.focus(),
  j: () => move(1),
  k: () => move(-1),
  x: () => tick(false),
  X: () => tick(true),
  r: retry,
  n: () => one("#next")?.click(),
  "?": () => help?.showModal(),
};
let went = 0;
addEventListener("keydown", (event) => {
  const typing = event.target.closest?.("input:not([type=checkbox], [type=radio]), textarea, select");
  if (event.key === "Escape") {
    if (typing) event.target.blur();
    for (const details of all("details.pop[open]")) details.open = false;
    return;
  }
  if (typing || prefs.keys === "off" || help?.open || event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return;
  const page = performance.now() - went < 1500 && pages[event.key];
  went = event.key === "g" ? performance.now() : 0;
  const act = page ? () => location.assign(page) : acts[event.key];
  if (!act) return;
  event.preventDefault();
  act();
});

// What a person chose
function choose(name, act) {
  const select = one(`#pref-${name}`);
  select?.addEventListener("change", () => act(select.value));
  return select;
}
function prepare(inside) {
  for (const button of all("[data-copy]", inside)) button.hidden = false;
}
const chosen = {
  live: choose("live", (value) => { prefs.live = Number(value); memory.set("live", value); start(); }),
  zone: choose("zone", (value) => { prefs.zone = value; memory.set("zone", value); times(); }),
  keys: choose("keys", (value) => { prefs.keys = value; memory.set("keys", value); }),
  theme: choose("theme", (value) => {
    const path = home.pathname;
    // The server writes the look into the page, so that it never flashes in another one.
    document.cookie = `aftercommit-look=${value}; path=${path}; max-age=${value ? 31536000 : 0}; samesite=lax`;
    if (value) document.documentElement.dataset.theme = value;
    else delete document.documentElement.dataset.theme;
  }),
};
for (const name of ["live", "zone", "keys"]) if (chosen[name]) chosen[name].value = String(prefs[name]);
if (chosen.theme) chosen.theme.value = document.documentElement.dataset.theme ?? "";
for (const hidden of all("#prefs, #tick-all")) hidden.hidden = false;
prepare(document);
counted();
times();
setInterval(times, 1000);
start();
