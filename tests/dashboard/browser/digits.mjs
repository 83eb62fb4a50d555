// Every digit of what was sent and answered is on the page and in what is copied: when it is loaded, and when it was kept fresh.
import { assert, base, go, tab, text, told } from "./kit.mjs";

export default async function (browser) {
  const { page, context, complaints } = await tab(browser);
  await context.grantPermissions(["clipboard-read", "clipboard-write"], { origin: new URL(base).origin });
  await context.addInitScript(() => localStorage.setItem("aftercommit-live", "1"));
  const sheet = async (label) => (await page.locator(`pre[aria-label=${label}]`).innerText()).replace(/\s+/g, "");
  await go(page, `effects/${told.id}`);
  await page.locator("#live[data-on]").waitFor();
  for (const label of ["Payload", "Answer"]) assert.equal(await sheet(label), told.numbers, label);
  await page.getByRole("heading", { name: "Payload" }).getByRole("button", { name: "Copy" }).click();
  await page.getByText("Copied").waitFor();
  assert.equal(await page.evaluate(() => navigator.clipboard.readText()), told.numbers, "what is copied");

  const retried = await context.request.post(`${base}api/v1/effects/${told.id}/retry`, {
    headers: { "content-type": "application/json", "sec-fetch-site": "same-origin" }, data: told.seen,
  });
  assert.ok(retried.ok(), await retried.text());
  await page.locator(".state.big.ready").waitFor();
  await page.getByText("None is kept").waitFor();
  assert.equal(await sheet("Payload"), told.numbers, "in the part that was replaced");

  await go(page, "effects");
  assert.match(await text(page, "tbody"), /order\s+9007199254740993/);
  await page.getByRole("link", { name: /9007199254740993/ }).click();
  await page.waitForURL(/q=metadata\.order/);
  assert.equal(await page.locator("tbody tr").count(), 1, "what a reference links to is what has it");
  await go(page, "effects?q=metadata.order:9007199254740992");
  assert.match(await text(page), /No effect matches/);
  assert.deepEqual(complaints, []);
}
