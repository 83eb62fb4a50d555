// Times say their zone, whatever the browser's is; the distance is by the database's clock.
import { assert, go, tab, told } from "./kit.mjs";

export default async function (browser) {
  const { page, complaints } = await tab(browser, { timezoneId: "Asia/Kolkata" });
  await go(page, `effects/${told.failed}`);
  const written = page.locator("dl.facts time").first();
  const exact = await written.getAttribute("datetime");
  assert.equal(await written.innerText(), `${exact.replace("T", " ").replace("Z", "")} UTC`);
  await page.locator(".who summary").click();
  await page.getByLabel("Times").selectOption("local");
  const local = await written.innerText();
  assert.match(local, / \+05:30$/);
  assert.equal(new Date(local.replace(" ", "T").replace(" +05:30", "+05:30")).toISOString().slice(0, 19), exact.slice(0, 19));
  await go(page, `effects/${told.failed}`);
  await page.locator(".who summary").click();
  assert.match(await written.innerText(), / \+05:30$/, "the choice is remembered");
  await page.getByLabel("Look").selectOption("dark");
  await go(page);
  assert.equal(await page.locator("html").getAttribute("data-theme"), "dark", "the server knows the look");
  assert.deepEqual(complaints, []);
}
