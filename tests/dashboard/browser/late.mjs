// At the pace that nobody changed everything is seen in the end: what happens in a page's first seconds, what happens right after its
// last look, and what changes no count.
import { assert, base, go, tab } from "./kit.mjs";

const json = { "content-type": "application/json", "sec-fetch-site": "same-origin" };

export default async function (browser) {
  const { page, context, complaints } = await tab(browser);
  const post = async (path, data) => {
    const answer = await context.request.post(`${base}api/v1/${path}`, { headers: json, data });
    assert.ok(answer.ok(), await answer.text());
  };
  const enqueue = (downstream, key) => post("effects", { downstream, idempotency_key: key, payload: { amount: 1 } });
  // What was none is no count on the page: only the server makes it one.
  const due = (name) => page.locator(`#fleet a[data-count=ready][data-of=${name}]`);
  await go(page);
  await page.locator("#live[data-on]").waitFor();
  assert.equal(await due("mail").count(), 0);
  await enqueue("mail", "late-1");
  await due("mail").waitFor();
  await enqueue("payments", "late-2");
  await due("payments").waitFor();
  await post("downstreams/mail/pause", { reason: "the relay is being moved" });
  await page.getByText("mail is paused by").waitFor();

  await go(page, "downstreams");
  const standing = page.locator("#d-payments h2 .state");
  await page.locator("#live[data-on]").waitFor();
  assert.notEqual(await standing.innerText(), "paused");
  await post("downstreams/payments/pause", { reason: "the vendor asked us to" });
  await page.locator("#d-payments h2 .state", { hasText: "paused" }).waitFor();

  // Below this width the word is for ears alone as long as all is well, and a disc tells it; what is not well is told in words.
  await page.setViewportSize({ width: 360, height: 740 });
  await page.locator("#live[data-on]").waitFor();
  const disc = () => page.locator("#live i").evaluate((mark) => getComputedStyle(mark).backgroundColor);
  const full = await disc();
  await page.evaluate(() => document.querySelector("#live").removeAttribute("data-on"));
  assert.notEqual(await disc(), full);
  assert.ok(await page.locator("#live span").evaluate((words) => words.getBoundingClientRect().width > 5));
  assert.deepEqual(complaints, []);
}
