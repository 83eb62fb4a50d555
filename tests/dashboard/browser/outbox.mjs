// A list is open; what has a lower number and commits later than what it shows is told of, and stands in its place.
import { assert, base, go, tab } from "./kit.mjs";

const json = { "content-type": "application/json", "sec-fetch-site": "same-origin" };

export default async function (browser) {
  const { page, context, complaints } = await tab(browser);
  await context.addInitScript(() => localStorage.setItem("aftercommit-live", "1"));
  const enqueue = async (key) => {
    const data = { downstream: "pay", idempotency_key: key, payload: { amount: 1 } };
    const answer = await context.request.post(`${base}api/v1/effects`, { headers: json, data });
    assert.ok(answer.ok(), await answer.text());
  };
  const keys = () => page.locator("tbody td .mono").allInnerTexts();
  await go(page, "effects");
  await page.locator("#live[data-on]").waitFor();
  assert.deepEqual(await keys(), ["old-1"]);
  await enqueue("newer-1");
  await page.getByText("1 new — show").click();
  await page.getByText("newer-1").waitFor();
  assert.deepEqual(await keys(), ["newer-1", "old-1"]);
  await page.locator("#live[data-on]").waitFor();
  // When this one is there, what was begun before newer-1 commits.
  await enqueue("shown");
  await page.getByText("2 new — show").click();
  await page.getByText("late-1").waitFor();
  assert.deepEqual(await keys(), ["shown", "newer-1", "late-1", "old-1"]);
  assert.deepEqual(complaints, []);
}
