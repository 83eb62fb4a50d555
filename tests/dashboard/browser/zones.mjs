// The database is in Tokyo, the server in UTC, who reads in Kolkata or in Berlin, where 02:30 comes twice in one night.
import { assert, go, tab, text, told } from "./kit.mjs";

const due = ["2027-10-31T00:30:00Z", "2027-10-31T01:30:00Z"];
const shown = {
  "Asia/Kolkata": ["2027-10-31 06:00:00 +05:30", "2027-10-31 07:00:00 +05:30"],
  "Europe/Berlin": ["2027-10-31 02:30:00 +02:00", "2027-10-31 02:30:00 +01:00"],
};

// Hours and minutes that no zone follows.
function withoutZone(words) {
  const times = [...words.matchAll(/(?<![\d.:+-])\d\d:\d\d(?::\d\d)?(?:\.\d+)?(?!\d)/g)];
  const bare = times.filter(({ 0: time, index }) => !/^(Z| ?UTC| ?[+-]\d\d:\d\d)/.test(words.slice(index + time.length)));
  return bare.map(({ index }) => words.slice(Math.max(0, index - 30), index + 30));
}

async function reads(browser, timezoneId) {
  const { page, context, complaints } = await tab(browser, { timezoneId });
  const distances = [];
  for (const [n, exact] of due.entries()) {
    await go(page, `effects/${told.due[n]}`);
    const time = page.locator(`dl.facts time[datetime="${exact}"]`).first();
    assert.equal(await time.innerText(), `${exact.replace("T", " ").replace("Z", "")} UTC`, "first in UTC");
    distances.push(await page.locator(`dl.facts [data-away="${exact}"]`).first().innerText());
  }
  await context.addInitScript(() => localStorage.setItem("aftercommit-zone", "local"));
  for (const [n, exact] of due.entries()) {
    await go(page, `effects/${told.due[n]}`);
    const times = page.locator(`time[datetime="${exact}"]`);
    assert.ok((await times.count()) > 1, "in the facts, and in what follows");
    for (const time of await times.all()) assert.equal(await time.innerText(), shown[timezoneId][n]);
  }
  let zoned = 0;
  for (const where of ["", "effects", "doubt", "failures", "downstreams", "workers", "audit", "requests", "bulk", `effects/${told.due[0]}`,
    `effects/${told.due[0]}/cancel`, `effects/${told.written[2]}`]) {
    await go(page, where);
    const words = await text(page, "body");
    assert.deepEqual(withoutZone(words), [], where);
    zoned += words.match(/ [+-]\d\d:\d\d/g)?.length ?? 0;
  }
  assert.ok(zoned > 20, `${zoned} times in the zone of ${timezoneId}`);

  // What is read on a page is what can be searched for: the second that begins there, and no other.
  await go(page, `effects/${told.written[2]}`);
  const [day, hours, zone] = (await page.locator("dl.facts time").first().innerText()).split(" ");
  const from = `${day}T${hours}${zone}`;
  assert.equal(Date.parse(from), Date.parse("2025-10-26T01:00:00Z"));
  const to = from.replace(/:00([+-])/, ":01$1");
  await go(page, "effects");
  await page.locator("#q").fill(`created:>${from} created:<${to}`);
  await page.locator("#q").press("Enter");
  await page.waitForURL(/q=created/);
  const found = await page.locator("tbody a.row").evaluateAll((links) => links.map((link) => Number(link.href.split("/").pop())));
  assert.deepEqual(found, [told.written[3], told.written[2]]);
  assert.deepEqual(complaints, []);
  return distances;
}

export default async function (browser) {
  const inKolkata = await reads(browser, "Asia/Kolkata");
  const inBerlin = await reads(browser, "Europe/Berlin");
  assert.match(inKolkata[0], /^in \d+ d$/);
  assert.deepEqual(inKolkata, inBerlin, "how far away it is is the same everywhere");
}
