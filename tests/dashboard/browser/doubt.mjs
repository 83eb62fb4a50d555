// An in-doubt charge is found, understood and resolved.
import { assert, go, shot, tab, text, told } from "./kit.mjs";

export default async function (browser) {
  const { page, complaints } = await tab(browser);
  await go(page);
  assert.match(await text(page, "#tiles .doubt"), /Needs a decision\s+1/);
  await page.getByRole("link", { name: "Decide" }).click();
  const card = await text(page, "article");
  assert.match(card, /It was sent once: attempt 1 ended unknown/);
  assert.match(card, /No answer within 20 s\./);
  assert.match(card, /"amount":1500.*"order":"A-17"/);
  assert.match(card, /1 of at most 100/);
  assert.match(card, /recognises a key for 24 h/);
  await shot(page, "doubt-card");
  await page.getByRole("link", { name: "It was applied…" }).click();
  assert.equal(await page.locator("h1").innerText(), `Resolve as applied effect #${told.id}`);
  assert.match(await text(page), /it becomes succeeded, and nothing is sent any more/);
  await page.getByLabel("Reason").fill("ch_19 stands in the list of charges");
  await page.getByLabel("What the downstream said").fill('{"id":"ch_19","big":9007199254740993}');
  await shot(page, "doubt-resolve");
  await page.getByRole("button", { name: "It was applied" }).click();
  await page.waitForURL(/\/effects\/\d+\?done=resolve-applied$/);
  assert.match(await text(page), /Done: it counts as applied/);
  assert.match(await text(page, "#history + ol, .history"), /resolve applied/);
  assert.match(await text(page), /9007199254740993/);
  await page.getByRole("link", { name: "In doubt" }).first().click();
  assert.match(await text(page), /Nothing is in doubt\./);
  assert.deepEqual(complaints, []);
}
