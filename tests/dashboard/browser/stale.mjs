// Two people look at one failed effect; the second one's retry is refused, and the page says what changed.
import { assert, go, shot, tab, text, told } from "./kit.mjs";

export default async function (browser) {
  const first = await tab(browser);
  const second = await tab(browser, { expects: [409] });
  for (const { page } of [first, second]) {
    await go(page, `effects/${told.id}`);
    await page.getByRole("link", { name: "Retry…" }).click();
  }
  await first.page.getByLabel("Reason").fill("mine came first");
  await first.page.getByRole("button", { name: "Retry now" }).click();
  await first.page.waitForURL(/done=retry$/);
  const answer = second.page.waitForResponse((response) => response.request().method() === "POST");
  await second.page.getByRole("button", { name: "Retry now" }).click();
  assert.equal((await answer).status(), 409);
  const words = await text(second.page);
  assert.match(words, /It changed since you looked, and nothing was done/);
  assert.match(words, /You decided on\s+failed/);
  assert.match(words, /mine came first/);
  assert.match(words, /This cannot be done now|Retry now/);
  await shot(second.page, "stale");
  assert.deepEqual([...first.complaints, ...second.complaints], []);
}
