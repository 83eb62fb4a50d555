// What every scenario uses: Debian's Chromium, driven by playwright-core. Whatever a page complains about fails the scenario.
import assert from "node:assert/strict";
import fs from "node:fs";
import path from "node:path";
import { createRequire } from "node:module";

const require = createRequire(path.join(process.env.AFTERCOMMIT_TEST_NODE, "scenario.js"));
const { chromium } = require("playwright-core");
const axeSource = fs.readFileSync(require.resolve("axe-core/axe.min.js"), "utf8");

export { assert };
export const base = process.env.SITE;
export const told = JSON.parse(process.env.TOLD ?? "{}");
const shots = process.env.SHOTS;
const ours = [base, ...(told.sites ?? []), "data:"];

export const launch = (more = []) =>
  chromium.launch({
    executablePath: process.env.AFTERCOMMIT_TEST_CHROMIUM,
    args: ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
      "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage", ...more],
  });

// A tab of its own, with everything it complained about. `expects` are statuses that the scenario provokes.
export async function tab(browser, { expects = [], ...options } = {}) {
  const context = await browser.newContext({ viewport: { width: 1440, height: 900 }, ...options });
  context.setDefaultTimeout(30_000);
  const page = await context.newPage();
  const complaints = [];
  await page.addInitScript(() => {
    addEventListener("securitypolicyviolation", (event) =>
      console.error(`violates ${event.effectiveDirective}: ${event.blockedURI} ${event.sample}`));
  });
  page.on("console", (message) => {
    const provoked = expects.some((status) => message.text().includes(`status of ${status}`));
    if (["error", "warning"].includes(message.type()) && !provoked) complaints.push(message.text());
  });
  page.on("pageerror", (error) => complaints.push(String(error)));
  page.on("dialog", (dialog) => { complaints.push(`dialog: ${dialog.message()}`); dialog.dismiss(); });
  page.on("request", (request) => {
    if (!ours.some((place) => request.url().startsWith(place))) complaints.push(`asks ${request.url()}`);
  });
  return { page, context, complaints };
}

// `where` is below our dashboard, or the whole address of another one.
export const go = (page, where = "", options) => page.goto(new URL(where, base).href, options);
export const text = (page, what = "main") => page.locator(what).innerText();

// Serious faults for people who use the page by other means than eyes and a mouse. The debugger puts axe into the page: the policy
// of the page itself lets no script in, and stays as it is.
export async function accessible(page, where, only) {
  if (!(await page.evaluate(() => "axe" in window))) await page.evaluate(axeSource);
  const { violations } = await page.evaluate((rules) => window.axe.run(document, {
    resultTypes: ["violations"],
    ...(rules ? { runOnly: rules } : { rules: { "target-size": { enabled: true } } }),
  }), only);
  const serious = violations.filter(({ impact }) => ["serious", "critical"].includes(impact));
  const words = serious.map(({ id, help, nodes }) =>
    `${id}: ${help}\n${nodes.slice(0, 3).map(({ html, failureSummary }) => `  ${html}\n  ${failureSummary}`).join("\n")}`);
  return words.map((fault) => `${where}: ${fault}`);
}

// Nothing is wider than the window.
export async function fits(page, where) {
  const wide = await page.evaluate(() => {
    const room = document.documentElement.clientWidth;
    const out = [...document.querySelectorAll("body *")].filter((element) => {
      const box = element.getBoundingClientRect();
      return (box.right > room + 1 || box.left < -1) && box.width > 0 && !element.closest(".sr, .skip, pre, [hidden], details:not([open])");
    });
    const said = out.slice(0, 5).map((element) => element.outerHTML.slice(0, 160));
    return document.documentElement.scrollWidth > room ? [`scrolls to ${document.documentElement.scrollWidth}`, ...said] : said;
  });
  return wide.map((element) => `${where} is too wide, or cut off: ${element}`);
}

export async function shot(page, name) {
  if (!shots) return;
  fs.mkdirSync(shots, { recursive: true });
  await page.screenshot({ path: path.join(shots, `${name}.png`), fullPage: true });
}

// Waits until `what` holds, and says what it waited for.
export async function until(what, holds, most = 30_000) {
  const end = Date.now() + most;
  for (;;) {
    if (await holds()) return;
    assert.ok(Date.now() < end, `waited in vain for: ${what}`);
    await new Promise((next) => setTimeout(next, 50));
  }
}
