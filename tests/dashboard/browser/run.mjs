// node run.mjs SCENARIO: runs it against the dashboard at SITE.
import { launch } from "./kit.mjs";

const scenario = await import(`./${process.argv[2]}.mjs`);
const browser = await launch();
try {
  await scenario.default(browser);
} finally {
  await browser.close();
}
