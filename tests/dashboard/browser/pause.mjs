// A downstream is paused, which everybody sees, and resumed.
import { assert, go, shot, tab, text } from "./kit.mjs";

export default async function (browser) {
  const { page, complaints } = await tab(browser);
  await go(page, "downstreams");
  await page.locator("#d-payments").getByRole("link", { name: "Pause…" }).click();
  assert.match(await text(page), /Nothing more is sent there by any worker/);
  await page.getByLabel("Reason").fill("the vendor asked us to");
  await page.getByRole("button", { name: "Pause payments" }).click();
  await page.waitForURL(/\/downstreams\?done=pause$/);
  await go(page);
  await page.getByText("payments is paused by").waitFor();
  assert.match(await text(page), /Because: the vendor asked us to/);
  await shot(page, "pause-overview");
  await go(page, "downstreams");
  await page.getByRole("link", { name: "Resume…" }).click();
  await page.getByRole("button", { name: "Resume payments" }).click();
  await page.waitForURL(/\/downstreams\?done=resume$/);
  assert.deepEqual(complaints, []);
}
