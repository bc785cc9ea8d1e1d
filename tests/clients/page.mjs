// The page in headless Chromium; see page_client.py. Any error in the console, or serious finding of axe-core, fails.
// usage: node page.mjs NODE_MODULES URL demo|scripted|kept|keys [SCREENSHOTS | KEY]
import assert from "node:assert/strict";
import fs from "node:fs";
import { createRequire } from "node:module";
import path from "node:path";
import { pathToFileURL } from "node:url";
import { keepsMessages, keepsWhatTwoTabsSay, readsInOnePass, readsMarks, sendsAmongMany } from "./page_kept.mjs";

const [modules, url, what, more] = process.argv.slice(2);
const require = createRequire(pathToFileURL(`${modules}/`));
const { chromium } = require("playwright-core");
const axe = fs.readFileSync(require.resolve("axe-core/axe.min.js"), "utf8");
const executablePath = ["/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome"].find(fs.existsSync);
assert(executablePath, "no Chromium: apt-get install chromium");
const args = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"];
const browser = await chromium.launch({ executablePath, args });
const LOOKS = {
  light: { viewport: { width: 1280, height: 800 }, colorScheme: "light" },
  dark: { viewport: { width: 1280, height: 800 }, colorScheme: "dark" },
  phone: { viewport: { width: 390, height: 844 }, colorScheme: "light", hasTouch: true, isMobile: true, deviceScaleFactor: 2 },
};
const WHOLE = "#send:not([hidden])";
const faults = [];
const deadline = setTimeout(() => { console.error("it takes too long"); process.exit(1); }, 90_000);

async function opened(look, allowed = /$^/) {
  const page = await (await browser.newContext({ ...LOOKS[look], reducedMotion: "reduce" })).newPage();
  page.setDefaultTimeout(15_000);
  page.on("console", (message) => { if (message.type() === "error" && !allowed.test(message.text())) faults.push(`${look}: ${message.text()}`); });
  page.on("pageerror", (error) => faults.push(`${look}: ${error.message}`));
  page.on("request", (request) => { if (!request.url().startsWith(url) && !/^(data|blob):/.test(request.url())) faults.push(`asked elsewhere: ${request.url()}`); });
  await page.goto(url);
  return page;
}

async function say(page, words) {
  await page.fill("#draft", words);
  await page.click("#send");
}

async function answered(page) {
  await page.waitForSelector(`${WHOLE}`);
  const last = page.locator(".message.assistant").last();
  return { words: await last.locator(".words").innerText(), last };
}

async function accessible(page, where) {
  const found = await page.evaluate(`${axe}; axe.run().then((r) => r.violations.filter((v) => ["serious", "critical"].includes(v.impact)).map((v) => v.id + ": " + v.nodes[0].html))`);
  assert.deepEqual(found, [], where);
}

const shot = async (page, name) => { if (more) await page.screenshot({ path: path.join(more, `page-${name}.png`) }); };

async function demo() {
  for (const look of Object.keys(LOOKS)) {
    const page = await opened(look);
    await page.waitForFunction(() => document.querySelector("#model").value === "hanzo-demo");
    assert(await page.isHidden("#attach"), "images are offered to a model that sees none");
    await accessible(page, `${look}: welcome`);
    await say(page, look === "dark" ? "Tell me a story about a fox." : "What is the capital of France?");
    const { words } = await answered(page);
    assert(words.length > 5, words);
    if (look !== "light") await shot(page, look);
    await accessible(page, `${look}: conversation`);
    if (look === "phone") {
      await page.click("#side-open");
      await accessible(page, "phone: menu");
    }
    if (look === "light") {
      await page.reload();
      await page.waitForSelector(".message.assistant");
      assert.equal((await answered(page)).words, words, "a reload loses the conversation");
    }
    await page.click("#to-live");
    await page.waitForSelector(".model-card");
    if (look === "light") {
      await page.evaluate(async () => {
        for (let n = 0; n < 4; n += 1) {
          const body = JSON.stringify({ model: "hanzo-demo", max_tokens: 120, messages: [{ role: "user", content: `Tell me a story about ${n} foxes.` }] });
          await fetch("v1/chat/completions", { method: "POST", headers: { "content-type": "application/json" }, body });
        }
      });
    }
    await page.waitForFunction(() => document.querySelector(".tile strong") && document.querySelectorAll(".plot path, .plot circle").length > 0);
    assert.match(await page.innerText(".live-state"), /Serving/);
    if (look === "light") {
      await page.waitForFunction(() => document.querySelectorAll(".plot .line-0").length > 0);
      await shot(page, "live");
    }
    await accessible(page, `${look}: live`);
    await page.goto(`${url}docs`);
    await page.waitForSelector(".route");
    await page.click(".route summary");
    await page.waitForSelector(".route-body");
    await accessible(page, `${look}: API`);
    if (look === "light") {
      await page.goto(url);
      await page.waitForSelector(".message.assistant");
      await shot(page, look);
    }
    await page.context().close();
  }
}

async function scripted() {
  // The picture may be refused: what answers here takes none.
  const page = await opened("light", /status of 40[04]/);
  await page.waitForFunction(() => document.querySelector("#model").value === "scripted");
  assert.deepEqual(await page.$$eval("#model optgroup", (groups) => groups.map((group) => `${group.label}: ${group.innerText.trim()}`)), ["Ready: scripted", "On disk: on/disk"]);
  assert(await page.isVisible("#attach"), "a model that sees images is offered none");

  // Words come while the answer is made, and stopping ends it.
  await say(page, "slow");
  await page.waitForFunction(() => /3 4 5/.test(document.querySelector(".message.assistant .words")?.textContent));
  await page.click("#stop");
  const stopped = await answered(page);
  assert.match(await stopped.last.innerText(), /Stopped\./);

  // What a model writes is never markup, and its links go where links may.
  await say(page, "hostile");
  await page.waitForSelector(".message.assistant .code");
  const { words, last } = await answered(page);
  assert(words.includes("<img src=x onerror=alert(1)>") && words.includes("[a link](javascript:alert(1))"), words);
  assert.equal(await last.locator("strong").innerText(), "bold");
  assert.deepEqual(await last.locator("a").evaluateAll((links) => links.map((link) => link.href)), ["https://example.com/"]);
  assert.equal(await page.locator(".words img, .words script").count(), 0);
  assert.equal(await last.locator("pre").innerText(), "<script>alert(1)</script>");

  await say(page, "reason");
  await page.waitForSelector(".reasoning:not([hidden])");
  const reasoned = await answered(page);
  assert.equal(await reasoned.last.locator("details.reasoning").getAttribute("open"), null, "reasoning is folded");
  assert.equal(reasoned.words, "Thought.");

  // A tool is offered, called, answered, and its result goes back.
  await page.click("#settings-open");
  await page.fill("#set-temperature", "7");
  assert.match(await page.innerText("#set-temperature-fault"), /From 0 to 2/);
  await page.fill("#set-temperature", "0.5");
  await page.fill("#set-tools", '[{"name": "get_weather", "parameters": {"type": "object"}}]');
  await page.keyboard.press("Escape");
  let asked = page.waitForRequest((request) => request.url().endsWith("/chat/completions"));
  await say(page, "tool");
  const sent = (await asked).postDataJSON();
  assert.equal(sent.temperature, 0.5);
  assert.equal(sent.tools[0].function.name, "get_weather");
  await page.waitForSelector(".call-form");
  assert.match(await page.innerText(".call"), /get_weather[\s\S]*"city": "Paris"/);
  await accessible(page, "a call");
  await page.fill(".call-form textarea", "21 degrees");
  await page.click(".call-form button");
  await page.waitForFunction(() => document.querySelectorAll(".message.assistant").length === 5);
  assert.equal((await answered(page)).words, "The tool said 21 degrees.");

  // Again, an edit, and conversations beside each other.
  await page.locator(".message.assistant").last().locator("[aria-label='Answer again']").click();
  assert.equal((await answered(page)).words, "The tool said 21 degrees.");
  await page.click("#new-chat");
  await page.setInputFiles("#attach-file", { name: "dot.png", mimeType: "image/png", buffer: Buffer.from("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==", "base64") });
  await page.waitForSelector("#attached img");
  asked = page.waitForRequest((request) => request.url().endsWith("/chat/completions"));
  await say(page, "a picture");
  assert.match((await asked).postDataJSON().messages.at(-1).content[0].image_url.url, /^data:image\/jpeg;base64,/);
  await answered(page);
  await page.waitForFunction(() => document.querySelectorAll("#conversations li").length === 2);
  await page.locator("#conversations .title").last().click();
  assert.equal((await answered(page)).words, "The tool said 21 degrees.");
  const saved = page.waitForEvent("download");
  await page.locator("#conversations li").last().hover();
  await page.locator("#conversations li").last().locator("[aria-label^='Export']").click();
  assert.match((await saved).suggestedFilename(), /^slow\.(md|json)$/);
  page.on("dialog", (dialog) => dialog.accept());
  await page.locator("#conversations li").last().locator("[aria-label^='Delete']").click();
  await page.waitForFunction(() => document.querySelectorAll("#conversations li").length === 1);
  await operated(page);
  await page.context().close();
}

/** Models are pulled, loaded, unloaded and removed, and it is seen how far each is. */
async function operated(page) {
  await page.click("#to-live");
  const pull = async (reference) => { await page.fill("#pull-name", reference); await page.keyboard.press("Enter"); };
  await pull("hf://x/new");
  await page.waitForSelector(".pull [role=meter][aria-valuenow='40']");
  assert.match(await page.innerText(".pull"), /x\/new[\s\S]*Downloading · 391 KiB of 977 KiB, 9 s left/);
  await page.click("[aria-label='Load on/disk']");
  await page.waitForSelector(".model-card [role=meter][aria-label=Loading][aria-valuenow='50']");
  await page.waitForSelector("text=x/new is here.");
  assert.equal(await page.locator(".pull").count(), 0);
  await accessible(page, "a model that is loaded");
  // The engine is done with it once it is asked for what follows.
  await page.evaluate(() => fetch("v1/models/what-was-loaded"));
  await page.click("[aria-label='Unload on/disk']");
  await page.waitForSelector("[aria-label='Load on/disk']");
  await pull("hf://x/none");
  await page.waitForSelector(".pull .problem");
  assert.match(await page.innerText(".pull .problem"), /hf:\/\/x\/none: .*there is no such model/);
  await page.click("[aria-label='Dismiss hf://x/none']");
  await pull("hf://x/endless");
  await page.waitForSelector(".pull [role=meter][aria-valuenow='40']");
  await accessible(page, "a pull");
  await page.click("[aria-label='Stop pulling hf://x/endless']");
  await page.waitForSelector("text=Stopped. What has come");
  await page.click("[aria-label='Remove on/disk from disk']");
  await page.waitForFunction(() => [...document.querySelectorAll("[aria-label='Remove on/disk from disk']")].every((button) => !button.disabled));
}

async function keys() {
  const page = await opened("dark", /401/);
  await page.waitForSelector("dialog[open]");
  await accessible(page, "the key's dialog");
  await page.fill("#key-input", "a-wrong-key-altogether");
  await page.click("dialog button[type=submit]");
  await page.waitForSelector("dialog[open] .problem");
  await page.fill("#key-input", more);
  await page.click("dialog button[type=submit]");
  await page.waitForFunction(() => document.querySelector("#model").value === "scripted");
  await say(page, "hello");
  assert.equal((await answered(page)).words, "You said hello.");
  assert.equal(await page.evaluate((key) => JSON.stringify({ ...localStorage }).includes(key), more), false, "the key is kept for good");
  await page.context().close();
}

/** Nothing that was said is lost, and nothing that a model writes stops the page. */
async function kept() {
  // The server is away for one question.
  const page = await opened("light", /Failed to load resource|ERR_FAILED/);
  await page.waitForFunction(() => document.querySelector("#model").value === "scripted");
  await readsMarks(page);
  console.log(await readsInOnePass(page, url));
  await keepsMessages(page, { say, answered, accessible });
  await keepsWhatTwoTabsSay(page, { say, answered });
  console.log(await sendsAmongMany(page, { say, answered }));
  await page.context().close();
}

try {
  await { demo, scripted, kept, keys }[what]();
  assert.deepEqual(faults, []);
} finally {
  clearTimeout(deadline);
  await browser.close();
}
