// Strings that would run, close, or turn around what is around them stand in every field that is stored: all of it is text.
import { assert, go, tab, told } from "./kit.mjs";

export default async function (browser) {
  const { page, complaints } = await tab(browser, { expects: [400, 404, 409, 422] });
  await page.addInitScript(() => { window.ran = 0; });
  const look = async (address) => {
    const answer = await go(page, address);
    assert.ok(answer.status() < 500, `${address}: ${answer.status()}`);
    assert.equal(await page.evaluate(() => window.ran), 0, `${address}: a script ran`);
    const strange = await page.evaluate(() => {
      const ours = "html head body meta title link script a header form label input span details summary div p strong br b small select option i nav ul ol li main " +
        "section h1 h2 h3 dl dt dd table caption thead tbody tr th td figure figcaption button footer dialog kbd svg path circle rect time code pre blockquote " +
        "progress textarea datalist fieldset legend article";
      const known = new Set(ours.split(" "));
      const found = [...document.querySelectorAll("*")].filter((element) =>
        !known.has(element.localName) || [...element.attributes].some(({ name }) => /^on|^style$/.test(name)));
      return found.map((element) => element.outerHTML.slice(0, 120));
    });
    assert.deepEqual(strange, [], address);
    const scripts = await page.evaluate(() => document.scripts.length);
    assert.equal(scripts, 1, `${address}: no script but ours`);
  };
  for (const address of told.pages) await look(address);
  assert.deepEqual(complaints, []);
}
