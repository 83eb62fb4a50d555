// What happens elsewhere is seen without a reload; a list does not move, and what somebody types is left alone.
import { assert, base, go, tab, text, told, until } from "./kit.mjs";

const json = { "content-type": "application/json", "sec-fetch-site": "same-origin" };

export default async function (browser) {
  const { page, context, complaints } = await tab(browser);
  await context.addInitScript(() => {
    if (localStorage.getItem("aftercommit-live") === null) localStorage.setItem("aftercommit-live", "1");
  });
  const enqueue = async (key) => {
    const answer = await context.request.post(`${base}api/v1/effects`, {
      headers: json, data: { downstream: "payments", idempotency_key: key, payload: { amount: 1 } },
    });
    assert.ok(answer.ok(), await answer.text());
  };
  await go(page, "effects");
  await page.locator("#live[data-on]").waitFor();
  const before = await page.locator("tbody tr").count();
  for (const n of [1, 2, 3]) await enqueue(`live-${n}`);
  await page.getByText("3 new — show").waitFor();
  assert.equal(await page.locator("tbody tr").count(), before, "the list did not move");
  await page.getByText("3 new — show").click();
  await page.getByText("live-3").waitFor();

  await go(page);
  const due = page.locator("#tiles [data-count=ready]");
  const n = Number(await due.innerText());
  await enqueue("live-4");
  await until("the tile to count one more", async () => Number(await due.innerText()) === n + 1);

  const other = await context.newPage();
  await go(page, `effects/${told.id}`);
  await go(other, `effects/${told.id}/cancel`);
  await other.getByRole("button", { name: "Cancel it" }).click();
  await other.waitForURL(/done=cancel$/);
  await page.locator(".state.big.cancelled").waitFor();

  await page.locator(".who summary").click();
  await page.getByLabel("Live").selectOption("0");
  await page.getByText("live is off").waitFor();

  const still = await context.newPage();
  await still.clock.install();
  await go(still);
  const asked = [];
  still.on("request", (request) => request.url().includes("/assets/") || asked.push(request.url()));
  await enqueue("live-5");
  await still.clock.runFor(60_000);
  assert.deepEqual(asked, [], "a minute later nothing was asked: off is off, and it is remembered");
  assert.match(await text(still, "#live"), /off/);
  assert.deepEqual(complaints, []);
}
