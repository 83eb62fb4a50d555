// Strings that would run, close, or turn around what is around them stand in every field that is stored: all of it is text.
import { assert, base, go, tab, told } from "./kit.mjs";

// What a page is made of when nothing but ours is in it.
const ours = "html head body meta title link script a header form label input span details summary div p strong br b small select option " +
  "i nav ul ol li main section h1 h2 h3 dl dt dd table caption thead tbody tr th td figure figcaption button footer dialog kbd svg path " +
  "circle rect time code pre blockquote progress textarea datalist fieldset legend article noscript";

async function look(page, address) {
  // The module has run by then.
  const answer = await go(page, address, { waitUntil: "domcontentloaded" });
  assert.ok(answer.status() < 500, `${address}: ${answer.status()}`);
  return judge(page, address);
}

async function judge(page, address) {
  const seen = await page.evaluate((names) => {
    const known = new Set(names.split(" "));
    const strange = [...document.querySelectorAll("*")].filter((element) =>
      !known.has(element.localName) || [...element.attributes].some(({ name }) => /^on|^style$/.test(name)));
    return {
      ran: window.ran,
      strange: strange.map((element) => element.outerHTML.slice(0, 120)),
      scripts: [...document.scripts].map((script) => script.getAttribute("src") && script.src),
      told: document.body.textContent.split("window.ran=1").length - 1,
      next: document.querySelector("a[rel=next]")?.href,
    };
  }, ours);
  assert.equal(seen.ran, 0, `${address}: a script ran`);
  assert.deepEqual(seen.strange, [], address);
  // A page that refuses what it was asked has none; no page has one that is not ours.
  assert.ok(seen.scripts.length < 2 && seen.scripts.every((src) => src?.startsWith(`${base}assets/app.`)), `${address}: ${seen.scripts}`);
  return seen;
}

async function opened(browser, seconds) {
  const { page, complaints } = await tab(browser, { expects: [400, 404, 409, 422] });
  await page.addInitScript((live) => {
    window.ran = 0;
    localStorage.setItem("aftercommit-live", live);
  }, seconds);
  return { page, complaints };
}

export default async function (browser) {
  // First as they keep themselves fresh: what the module puts into a page is text too.
  const live = await opened(browser, "1");
  for (const address of ["", "effects", told.pages.at(-1)]) {
    await look(live.page, address);
    await live.page.locator("#live[data-on]").waitFor();
    await judge(live.page, address);
  }
  assert.deepEqual(live.complaints, []);
  await live.page.close();

  const waiting = [...told.pages];
  let shown = 0;
  const visit = async () => {
    const { page, complaints } = await opened(browser, "0");
    for (let address = waiting.shift(); address !== undefined; address = waiting.shift()) {
      const seen = await look(page, address);
      shown += seen.told;
      if (seen.next) waiting.push(seen.next);
    }
    assert.deepEqual(complaints, []);
  };
  // Two at a time: one waits for the server while the other is drawn.
  await Promise.all([visit(), visit()]);
  assert.ok(shown > 10 * told.strings, `${told.strings} strings were shown ${shown} times`);
}
