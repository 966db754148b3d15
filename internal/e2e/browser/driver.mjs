// Drives one browser for the Go tests: one JSON command a line on stdin, one
// JSON reply a line on stdout ({id, result} or {id, error}). Commands run one
// after the other for each page and side by side for different pages. The
// browser ends when stdin does, so a test that dies leaves nothing behind.
import puppeteer from 'puppeteer-core';
import readline from 'node:readline';

let browser;
const pages = new Map();
let nextPage = 1;

const page = (id) => {
  const p = pages.get(id);
  if (!p) throw new Error(`no page ${id}`);
  return p;
};

const commands = {
  async launch({ browser: name, executable, args, prefs }) {
    const options = {
      browser: name,
      executablePath: executable,
      headless: true,
      args,
      protocolTimeout: 120_000,
      timeout: 60_000,
    };
    if (name === 'firefox') options.extraPrefsFirefox = prefs;
    browser = await puppeteer.launch(options);
    return { pid: browser.process()?.pid ?? 0, version: await browser.version() };
  },
  async open({ url, width, height, timeout }) {
    const p = await browser.newPage();
    const id = nextPage++;
    const log = [];
    p.on('console', (m) => log.push(`${m.type()}: ${m.text()}`));
    p.on('pageerror', (e) => log.push(`pageerror: ${e.message}`));
    pages.set(id, { page: p, log });
    if (width) await p.setViewport({ width, height, deviceScaleFactor: 1 });
    await p.goto(url, { waitUntil: 'load', timeout });
    return { page: id };
  },
  async eval({ page: id, expression }) {
    return await page(id).page.evaluate(expression);
  },
  async click({ page: id, selector }) {
    await page(id).page.bringToFront(); // a tab in the background draws no frames, which a click waits for
    await page(id).page.click(selector);
  },
  async screenshot({ page: id, path, fullPage }) {
    await page(id).page.screenshot({ path, fullPage });
  },
  async log({ page: id }) {
    return page(id).log;
  },
  async close({ page: id }) {
    await page(id).page.close();
    pages.delete(id);
  },
};

const queues = new Map();
const send = (reply) => process.stdout.write(JSON.stringify(reply) + '\n');

const run = async ({ id, command, params }) => {
  try {
    send({ id, result: (await commands[command](params ?? {})) ?? null });
  } catch (e) {
    send({ id, error: String(e?.message ?? e) });
  }
};

const lines = readline.createInterface({ input: process.stdin });
for await (const line of lines) {
  const message = JSON.parse(line);
  const key = message.params?.page ?? 0;
  queues.set(key, (queues.get(key) ?? Promise.resolve()).then(() => run(message)));
}
await Promise.race([
  browser?.close().catch(() => {}),
  new Promise((resolve) => setTimeout(resolve, 8_000)),
]);
process.exit(0);
