// Every page, narrow and wide, light and dark: nothing overflows, nobody is shut out, and a picture is kept of each.
import { accessible, assert, fits, go, shot, tab, told } from "./kit.mjs";

const pages = {
  overview: "", week: "?span=7d", doubt: "doubt", failures: "failures", effects: "effects",
  failed: "effects?q=state:failed+downstream:payments", nothing: "effects?q=key:none", wrong: "effects?q=stat:x+state:faild",
  bulks: "bulk", downstreams: "downstreams", workers: "workers", requests: "requests", audit: "audit", about: "about",
  "bulk-verbs": "bulk/new?q=state:failed", "bulk-retry": "bulk/new?q=state:failed&verb=retry", "bulk-resend": "bulk/new?q=state:in_doubt&verb=resend",
  pause: "downstreams/payments/pause", absent: "effects/999999",
};
const ofEffects = {
  doubt: "", failed: "", succeeded: "", retrying: "", "doubt/resend": "", "doubt/resolve": "", "doubt/resolve?as=applied": "", "failed/retry": "",
  "succeeded/reissue": "", "succeeded/retry": "",
};

export default async function (browser) {
  const { width, scheme } = told;
  const options = { colorScheme: scheme, viewport: { width, height: width < 500 ? 740 : 900 }, expects: [400, 404, 409, 422] };
  const { page, context, complaints } = await tab(browser, options);
  const where = new Map(Object.entries(pages));
  for (const name of Object.keys(ofEffects)) {
    const [which, rest] = name.split(/\/(.*)/);
    where.set(`effect-${name.replace(/[/?=]/g, "-")}`, `effects/${told[which]}${rest ? `/${rest}` : ""}`);
  }
  where.set("bulk-one", `bulk/${told.bulk}`);
  for (const [name, address] of where) {
    const answer = await go(page, address);
    assert.ok(answer.status() < 500, `${name}: ${answer.status()}`);
    await page.waitForFunction(() => document.querySelector("#prefs")?.hidden !== true);
    await shot(page, `${name}-${width}-${scheme}`);
    await fits(page, `${name} at ${width}`);
    await accessible(page, `${name} at ${width}, ${scheme}`);
  }
  assert.deepEqual(complaints, [], `${width}, ${scheme}`);
  await context.close();
}
