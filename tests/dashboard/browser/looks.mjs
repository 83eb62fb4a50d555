// Pages, wide and narrow, light and dark: nothing overflows, nobody is shut out, and a picture is kept of each.
import { accessible, assert, fits, go, shot, tab, told } from "./kit.mjs";

const open = (what) => (page) => page.evaluate((found) => { document.querySelector(found).open = true; }, what);
const ofEffect = (which, rest = "") => `effects/${told[which]}${rest}`;

// By set: the name of each page, its address, and what is done there first.
const sets = {
  many: () => [
    ["overview", ""], ["overview-week", "?span=7d"], ["doubt", "doubt"], ["failures", "failures"],
    ["failures-doubt", "failures?state=in_doubt"], ["effects", "effects"], ["effects-fields", "effects?q=state:failed", open("#fields")],
    ["effects-columns", "effects?q=state:retrying&columns=state,key,attempts,when,written,worker,answer,error", open("#columns")],
    ["effects-nothing", "effects?q=key:none"], ["effects-wrong", "effects?q=stat:x+state:faild"],
    ["bulks", "bulk"], ["bulk-one", `bulk/${told.bulk}`], ["bulk-verbs", "bulk/new?q=state:failed"],
    ["bulk-retry", "bulk/new?q=state:failed&verb=retry"], ["bulk-resend", "bulk/new?q=state:in_doubt&verb=resend"],
  ],
  fleet: () => [
    ["downstreams", "downstreams"], ["pause", "downstreams/payments/pause"], ["workers", "workers"], ["requests", "requests"],
    ["audit", "audit"], ["about", "about"], ["who", "", open(".who")], ["menu", "", open(".menu")],
    ["help", "", (page) => page.keyboard.press("?")],
  ],
  one: () => [
    ["effect-doubt", ofEffect("doubt")], ["effect-failed", ofEffect("failed")], ["effect-succeeded", ofEffect("succeeded")],
    ["effect-retrying", ofEffect("retrying")], ["act-resend", ofEffect("mail", "/resend")], ["act-resend-safe", ofEffect("doubt", "/resend")],
    ["effect-travelling", ofEffect("travelling")], ["act-travelling", ofEffect("travelling", "/resend")],
    ["effect-fold", ofEffect("failed"), open(".closed")], ["act-resolve", ofEffect("doubt", "/resolve")], ["act-applied", ofEffect("doubt", "/resolve?as=applied")],
    ["act-retry", ofEffect("failed", "/retry")], ["act-reissue", ofEffect("succeeded", "/reissue")], ["act-refused", ofEffect("succeeded", "/retry")],
    ["error-effect", "effects/999999"], ["error-page", "nowhere"], ["error-asked", "doubt?before=x"],
  ],
  empty: () => ["", "doubt", "failures", "effects", "bulk", "downstreams", "workers", "requests", "audit"]
    .map((page) => [`empty-${page || "overview"}`, page]),
  less: () => [
    ["login", "login"], ["login-wrong", "login", logIn("a wrong token")],
    ["viewer-effect", ofEffect("doubt"), null, { as: told.viewer }], ["viewer-effects", "effects"],
    ...["", "doubt", "downstreams", ofEffect("failed")].map((page) =>
      [`readonly-${page.replace("/", "-") || "overview"}`, told.sites[0] + page]),
  ],
};

function logIn(token) {
  return async (page) => {
    await page.getByLabel("Token").fill(token);
    await page.getByRole("button", { name: "Log in" }).first().click();
    await page.waitForLoadState();
  };
}

// What is wrong with it.
async function look(page, name) {
  const faults = [];
  for (const width of [1440, 360]) {
    await page.setViewportSize({ width, height: width < 500 ? 740 : 900 });
    faults.push(...await fits(page, `${name} at ${width}`));
    for (const colorScheme of ["light", "dark"]) {
      await page.emulateMedia({ colorScheme });
      await shot(page, `${name}-${width}-${colorScheme}`);
      // What is dark differs by its colours alone.
      const rules = colorScheme === "dark" ? ["color-contrast"] : null;
      faults.push(...await accessible(page, `${name} at ${width}, ${colorScheme}`, rules));
    }
  }
  return faults;
}

export default async function (browser) {
  const { page, context, complaints } = await tab(browser, { expects: [400, 401, 403, 404, 409, 422, 429] });
  // What is looked at stands still.
  await page.addInitScript(() => localStorage.setItem("aftercommit-live", "0"));
  const faults = [];
  for (const [name, address, first, { as } = {}] of sets[told.set]()) {
    if (as) {
      await go(page, "login");
      await logIn(as)(page);
    }
    const answer = await go(page, address);
    assert.ok(answer.status() < 500, `${name}: ${answer.status()}`);
    if (first) await first(page);
    faults.push(...await look(page, name));
  }
  assert.equal(faults.length, 0, faults.join("\n"));
  assert.deepEqual(complaints, [], told.set);
  await context.close();
}
