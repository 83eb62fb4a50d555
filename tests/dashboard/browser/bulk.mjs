// 1,204 failures are retried, with a course that can be watched.
import { assert, go, shot, tab, text, until } from "./kit.mjs";

export default async function (browser) {
  const { page, complaints } = await tab(browser);
  await go(page, "failures");
  assert.match(await text(page, "tbody tr"), /card … declined/);
  assert.ok(await page.getByRole("link", { name: "Act on all 1,204 failed…" }).isVisible());
  await shot(page, "bulk-failures");
  await page.getByRole("link", { name: "Act on it…" }).first().click();
  await page.getByLabel("Retry").check();
  await page.getByRole("button", { name: "Show what it would do" }).click();
  assert.match(await text(page), /1,204 effects will be attempted again/);
  await page.getByLabel("Reason").fill("the bank is back");
  await page.getByLabel("At most this many a second").fill("400");
  await shot(page, "bulk-asked");
  await page.getByRole("button", { name: "Retry 1,204 effects" }).click();
  await page.waitForURL(/\/bulk\/\d+\?done=bulk$/);
  const seen = new Set();
  await until("all 1,204 to be dealt with", async () => {
    const words = await text(page, "#progress");
    seen.add(words);
    if (seen.size === 2) await shot(page, "bulk-running");
    return words.includes("Finished: 1,204 done");
  }, 60_000);
  assert.ok(seen.size > 2, `its course is seen without a reload: ${[...seen]}`);
  await shot(page, "bulk-finished");
  assert.match(await text(page, "#bulk .tiles"), /Done\s+1,204/);
  assert.deepEqual(complaints, []);
}
