// Pages that somebody else made, at another site and at another port of this one, in the browser of whoever is let in.
import http from "node:http";
import { assert, base, launch, told } from "./kit.mjs";

const html = { "content-type": "text/html; charset=utf-8" };
const cancel = (site) => `${site}effects/${told.id}/cancel`;
const fields = { state: "ready", token: String(told.token), seen_at: "1", reason: "", as: "" };

function form(site) {
  const inputs = Object.entries(fields).map(([name, value]) => `<input name="${name}" value="${value}">`).join("");
  return `<form method="post" action="${cancel(site)}">${inputs}</form><script>document.forms[0].submit()</script>`;
}

const sites = { open: base, guarded: told.guarded };
const evil = (path) => {
  const [kind, name] = path.slice(1).split("/");
  const site = sites[name];
  if (kind === "form") return form(site);
  if (kind === "image") return `<img src="${cancel(site)}"><link rel="prefetch" href="${cancel(site)}">`;
  if (kind === "frame") return `<iframe src="${site}" width="900" height="600"></iframe>`;
  return "<title>a page of somebody else</title>";
};

// What a script of theirs gets: a word for each try.
const scripted = (page, site) => page.evaluate(async ({ site, url, fields, id }) => {
  const seen = JSON.stringify({ state: fields.state, token: Number(fields.token) });
  const all = { credentials: "include" };
  const tries = {
    form: [url, { ...all, method: "POST", mode: "no-cors", body: new URLSearchParams(fields) }],
    disguised: [`${site}api/v1/effects/${id}/cancel`, { ...all, method: "POST", mode: "no-cors", body: new Blob([seen], { type: "text/plain" }) }],
    json: [`${site}api/v1/effects/${id}/cancel`, { ...all, method: "POST", headers: { "content-type": "application/json" }, body: seen }],
    bearer: [`${site}api/v1/effects/${id}/cancel`, { method: "POST", headers: { authorization: "Bearer guess" }, body: seen }],
    read: [`${site}api/v1/effects`, all],
    blind: [`${site}api/v1/effects`, { ...all, mode: "no-cors" }],
    events: [`${site}api/v1/events`, all],
  };
  const heard = Object.entries(tries).map(async ([name, [address, how]]) => {
    const said = await fetch(address, how).then((answer) => (answer.type === "opaque" ? "nothing" : `${answer.status}`), () => "nothing");
    return [name, said];
  });
  return Object.fromEntries(await Promise.all(heard));
}, { site, url: cancel(site), fields, id: told.id });

async function visits(browser, origin, name) {
  const site = sites[name];
  const context = await browser.newContext();
  const page = await context.newPage();
  page.setDefaultTimeout(30_000);
  if (name === "guarded") {
    const login = await context.request.post(`${site}login`, {
      form: { token: told.secret }, headers: { "sec-fetch-site": "same-origin" }, maxRedirects: 0,
    });
    assert.equal(login.status(), 303, await login.text());
  }
  const ours = await page.goto(`${site}effects/${told.id}`);
  assert.equal(ours.status(), 200, "whoever visits them is let in by us");
  const still = async (what) => {
    const effect = await context.request.get(`${site}api/v1/effects/${told.id}`);
    assert.equal((await effect.json()).state, "ready", `${what}, from ${origin} at ${name}`);
  };

  const answer = page.waitForResponse((response) => response.request().method() === "POST");
  await page.goto(`${origin}/form/${name}`, { waitUntil: "commit" });
  assert.equal((await answer).status(), 403, `a form of ${origin} at ${name}`);
  await page.getByText("Sent by another site").first().waitFor();
  await still("a form");

  await page.goto(`${origin}/image/${name}`);
  await still("an image");

  await page.goto(`${origin}/script`);
  const heard = await scripted(page, site);
  for (const [how, said] of Object.entries(heard)) assert.equal(said, "nothing", `${how}, from ${origin} at ${name}`);
  await still("a script");

  await page.goto(`${origin}/frame/${name}`);
  const [, frame] = page.frames();
  assert.ok(!frame.url().startsWith(site) || (await frame.locator("h1").count()) === 0, `framed by ${origin}: ${frame.url()}`);
  await context.close();
}

export default async function (browser) {
  const server = http.createServer((request, response) => response.writeHead(200, html).end(evil(request.url)));
  await new Promise((listens) => server.listen(0, "127.0.0.1", listens));
  const { port } = server.address();
  for (const origin of [`http://localhost:${port}`, `http://127.0.0.1:${port}`]) {
    for (const name of Object.keys(sites)) await visits(browser, origin, name);
  }
  server.closeAllConnections?.();
  server.close();

  // A name of theirs that leads to this machine.
  const rebound = await launch(["--host-resolver-rules=MAP rebound.test 127.0.0.1"]);
  try {
    const page = await rebound.newPage();
    for (const path of ["", "api/v1/effects", "metrics", `effects/${told.id}/cancel`]) {
      const answer = await page.goto(`http://rebound.test:${new URL(base).port}/${path}`);
      assert.equal(answer.status(), 421, path);
    }
  } finally {
    await rebound.close();
  }
}
