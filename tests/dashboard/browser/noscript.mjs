// Without scripts: what can be read can be operated.
import { assert, go, shot, tab, text, told } from "./kit.mjs";

export default async function (browser) {
  const { page, complaints } = await tab(browser, { javaScriptEnabled: false, viewport: { width: 360, height: 740 } });
  await go(page);
  await page.getByText("Menu", { exact: true }).click();
  await shot(page, "noscript-menu");
  await page.getByRole("navigation", { name: "All pages" }).getByRole("link", { name: "Effects" }).click();
  await page.getByText("Filter by field").click();
  await page.getByLabel("State", { exact: true }).selectOption("failed");
  await page.getByLabel("Reference: name").fill("order");
  await page.getByLabel("Reference: value").fill("A-7");
  await page.getByRole("button", { name: "Add to the search" }).click();
  assert.equal(new URL(page.url()).searchParams.get("q"), "state:failed metadata.order:A-7");
  assert.equal(await page.locator("tbody tr").count(), 1);
  await go(page, "effects?q=A-7");
  assert.match(page.url(), /\/effects\/\d+$/, "a reference alone leads to its effect");
  await go(page, "effects?q=state:failed");
  assert.equal(await page.locator("tbody tr").count(), 50);
  await page.getByRole("link", { name: "Older" }).click();
  assert.ok((await page.locator("tbody tr").count()) > 0);
  for (const box of (await page.locator("tbody input").all()).slice(0, 2)) await box.check();
  await page.getByRole("button", { name: "Act on what is ticked…" }).click();
  await page.getByLabel("Retry").check();
  await page.getByRole("button", { name: "Show what it would do" }).click();
  await page.getByRole("button", { name: "Retry 2 effects" }).click();
  await page.waitForURL(/\/bulk\/\d+/);
  await go(page, `effects/${told.doubt}/resend`);
  await page.getByLabel("Reason").fill("a second one does no harm");
  await page.getByLabel(/To confirm it, type/).fill("resend 1234567");
  await page.getByRole("button", { name: "Resend now" }).click();
  assert.match(await text(page), /To confirm it/);
  assert.equal(await page.getByLabel("Reason").inputValue(), "a second one does no harm", "what was typed is kept");
  await page.getByLabel(/To confirm it, type/).fill(`resend ${told.doubt}`);
  await page.getByRole("button", { name: "Resend now" }).click();
  await page.waitForURL(/done=resend$/);
  await shot(page, "noscript-resent");
  assert.deepEqual(complaints.filter((words) => !words.includes("422")), []);
}
