// Without a mouse: everything by keys.
import { assert, go, tab, text, until } from "./kit.mjs";

export default async function (browser) {
  const { page, complaints } = await tab(browser);
  const press = (...keys) => keys.reduce((before, key) => before.then(() => page.keyboard.press(key)), Promise.resolve());
  await go(page);
  await press("Tab");
  assert.equal(await page.evaluate(() => document.activeElement.className), "skip", "the first thing is the way to the content");
  await press("Enter");
  assert.equal(await page.evaluate(() => document.activeElement.id), "main");
  await press("?");
  await page.locator("#help[open]").waitFor();
  await press("Escape");
  await page.locator("#help:not([open])").waitFor({ state: "attached" });
  await press("g", "e");
  await page.waitForURL(/\/effects$/);
  await press("j", "j", "x", "k", "j", "j", "Shift+X");
  await until("three ticks", async () => (await text(page, "#ticked")) === "2 ticked");
  await press("k", "Enter");
  await page.waitForURL(/\/effects\/\d+$/);
  await press("/");
  await page.keyboard.type("state:in_doubt");
  await press("Enter");
  await page.waitForURL(/q=state%3Ain_doubt/);
  await press("g", "d");
  await page.waitForURL(/\/doubt$/);
  // On to the way out, as far as it takes.
  const name = () => page.evaluate(() => document.activeElement.textContent.trim());
  for (let n = 0; n < 60 && (await name()) !== "It was not applied…"; n += 1) await press("Tab");
  await press("Enter");
  await page.waitForURL(/resolve\?as=not-applied$/);
  for (let n = 0; n < 40 && (await page.evaluate(() => document.activeElement.id)) !== "reason"; n += 1) await press("Tab");
  await page.keyboard.type("r is a letter here, and so is ?");
  await press("Tab", "Enter");
  await page.waitForURL(/done=resolve-not-applied$/);
  await press("r");
  await page.waitForURL(/\/retry$/);
  await press("g", "f");
  await page.waitForURL(/\/failures$/);
  assert.deepEqual(complaints, []);
}
