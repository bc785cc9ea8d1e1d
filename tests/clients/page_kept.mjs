// What the page keeps, and how long it takes for what models write; page.mjs runs both checks in its Chromium.
import assert from "node:assert/strict";

const LENGTH = 100_000;
const RENDER_MS_MAX = 3000; // of one text of that length; what backtracks takes minutes
const EXPRESSION_MS_MAX = 200;
const CONVERSATIONS = 2000;

const stored = (page) => page.evaluate(() => Object.keys(localStorage).filter((name) => name.startsWith("hanzo.conversation.")).map((name) => JSON.parse(localStorage.getItem(name))));
const texts = (page) => page.locator(".message .words").allInnerTexts();

/** Editing, answering again and undoing lose no message, also when the page is loaded again in between. */
export async function keepsMessages(page, { say, answered, accessible }) {
  for (const words of ["one", "two", "three"]) {
    await say(page, words);
    await answered(page);
  }
  const six = ["one", "You said one.", "two", "You said two.", "three", "You said three."];
  const unchanged = async (when) => {
    assert.deepEqual(await texts(page), six, when);
    assert.deepEqual((await stored(page))[0].messages.map((message) => message.content), six, when);
  };
  await unchanged("asked");
  const edit = async () => { await page.locator(".message.user").first().hover(); await page.locator("[aria-label='Edit and ask again']").first().click(); };

  await page.fill("#draft", "half a thought");
  await edit();
  assert.equal(await page.inputValue("#draft"), "one");
  assert.match(await page.innerText("#editing"), /replaces this question and 5 messages after it/);
  await unchanged("edited");
  await accessible(page, "a question that is edited");
  await page.keyboard.press("Escape");
  assert.equal(await page.inputValue("#draft"), "half a thought");
  assert(await page.isHidden("#editing"));
  await unchanged("escaped");
  await page.reload();
  await page.waitForSelector(".message.assistant");
  await unchanged("loaded again");

  await edit();
  await page.reload();
  await page.waitForSelector(".message.assistant");
  await unchanged("loaded again while editing");

  // The server is away: the question is there, and so is what it replaced.
  await page.route("**/chat/completions", (route) => route.abort());
  await edit();
  await say(page, "uno");
  await page.waitForSelector(".message.assistant .problem");
  await page.unroute("**/chat/completions");
  assert.match(await page.innerText("#replaced"), /6 messages replaced/);
  await accessible(page, "messages that were replaced");
  await page.reload();
  await page.click("#replaced-undo");
  await unchanged("undone");
  await page.click("#replaced-undo"); // and back
  assert.deepEqual((await texts(page))[0], "uno");
  await page.click("#replaced-undo");

  await page.fill("#draft", "another thought");
  await edit();
  await say(page, "uno");
  await answered(page);
  assert.equal(await page.inputValue("#draft"), "another thought");
  assert.deepEqual(await texts(page), ["uno", "You said uno."]);
  await page.click("#replaced-undo");
  await unchanged("undone after an answer");

  // An answer in the middle is asked for again.
  await page.locator(".message.assistant").first().hover();
  await page.locator("[aria-label='Answer again']").first().click();
  await answered(page);
  assert.deepEqual(await texts(page), six.slice(0, 2));
  await page.click("#replaced-undo");
  await unchanged("answered again, and undone");
  await page.click("#replaced-dismiss");
  assert(await page.isHidden("#replaced"));
}

/** Two tabs that go on with one conversation keep both: the later one as a copy. A conversation that is removed while it is answered stays removed. */
export async function keepsWhatTwoTabsSay(page, { say, answered }) {
  const open = async (tab) => {
    await tab.goto(page.url());
    await tab.waitForFunction(() => document.querySelector("#model").value !== "");
    await tab.locator("#conversations .title").first().click();
    await tab.waitForSelector(".message.assistant");
  };
  await page.click("#new-chat");
  await say(page, "shared");
  await answered(page);
  const other = await page.context().newPage();
  await open(other);
  // An edit has begun here, so what the other tab says is not shown here.
  await page.locator(".message.user").first().hover();
  await page.locator("[aria-label='Edit and ask again']").first().click();
  await say(other, "from the other tab");
  await answered(other);
  await page.waitForTimeout(20);
  await say(page, "from this tab");
  await answered(page);
  const said = (await stored(page)).map((one) => one.messages.filter((message) => message.role === "user").map((message) => message.content).join(", "));
  for (const one of ["shared, from the other tab", "from this tab"]) assert(said.includes(one), `${one} is not in ${JSON.stringify(said)}`);
  await page.reload();
  await page.waitForSelector(".message.assistant");
  assert.equal((await texts(page))[0], "from this tab");
  await other.close();

  const before = (await stored(page)).length;
  page.once("dialog", (dialog) => dialog.accept());
  await page.route("**/chat/completions", () => {}); // never answered
  await say(page, "removed while it is answered");
  await page.locator("#conversations li.here").hover();
  await page.locator("#conversations li.here [aria-label^='Delete']").click();
  await page.waitForFunction(() => document.querySelector("#stop").hidden);
  await page.unroute("**/chat/completions");
  assert.equal((await stored(page)).length, before - 1);
}

/** With many conversations that an earlier version kept, a send reads and writes its own alone. */
export async function sendsAmongMany(page, { say, answered }) {
  await page.evaluate((count) => {
    localStorage.clear();
    sessionStorage.clear();
    const entries = [];
    for (let n = 0; n < count; n += 1) {
      const conversation = { id: `old${n}`, title: `Conversation ${n}`, created: n, updated: n + 1, model: "scripted", messages: [{ role: "user", content: "x".repeat(500) }, { role: "assistant", content: "y".repeat(500) }] };
      localStorage.setItem(`hanzo.conversation.${conversation.id}`, JSON.stringify(conversation));
      entries.unshift({ id: conversation.id, title: conversation.title, updated: conversation.updated });
    }
    localStorage.setItem("hanzo.conversations", JSON.stringify(entries));
  }, CONVERSATIONS);
  await page.reload();
  await page.waitForFunction(() => document.querySelector("#model").value === "scripted");
  assert.equal(await page.locator("#conversations li").first().innerText(), "Conversation 1999");
  assert.match(await page.innerText("#conversations-more"), /1900/);
  await page.click("#conversations-more");
  assert.equal(await page.locator("#conversations li").count(), 200);

  await page.evaluate(() => {
    window.bytes = 0;
    for (const name of ["getItem", "setItem"]) {
      const original = Storage.prototype[name];
      Storage.prototype[name] = function counted(...given) {
        const answer = original.apply(this, given);
        window.bytes += (given[1] ?? answer ?? "").length;
        return answer;
      };
    }
  });
  const begun = Date.now();
  await say(page, "among many");
  await answered(page);
  const [took, bytes] = [Date.now() - begun, await page.evaluate(() => window.bytes)];
  assert(bytes < 20_000, `a send reads and writes ${bytes} characters`);
  assert(took < 1500, `a send takes ${took} ms`);
  assert.equal(await page.locator("#conversations li").first().innerText(), "among many");

  await page.reload();
  await page.waitForFunction(() => document.querySelector("#conversations li .title")?.textContent === "among many");
  await page.locator("#conversations .title", { hasText: "Conversation 1998" }).click();
  assert.deepEqual((await texts(page)).map((text) => text.length), [500, 500]);
  assert.equal(await page.evaluate(() => Object.keys(localStorage).filter((name) => name.startsWith("hanzo.entry.")).length), CONVERSATIONS + 1);
  return `a send among ${CONVERSATIONS} took ${took} ms and ${bytes} characters`;
}

/** Regular expressions of a script: a slash that begins a value, up to the slash that ends it. */
function expressionsOf(script) {
  const found = [];
  const literal = /(?<=[=(,:[!&|?{};]\s*|return\s+)\/(?![*/])((?:[^/\\\n[]|\\.|\[(?:[^\]\\\n]|\\.)*\])+)\/([dgimsuvy]*)(?=[.,;)\s])/g;
  for (const line of script.split("\n").filter((one) => !one.trimStart().startsWith("//"))) {
    for (const [, source, flags] of line.matchAll(literal)) found.push({ source, flags });
  }
  return found;
}

/** No text that a model can write takes more than the time of one pass: the renderer, and every expression of every script. */
export async function readsInOnePass(page, url) {
  const scripts = await page.evaluate(() => performance.getEntriesByType("resource").map((entry) => entry.name).filter((name) => name.endsWith(".js")));
  const sources = await Promise.all([...scripts, new URL("page/docs.js", url).href].map(async (script) => (await fetch(script)).text()));
  const expressions = sources.flatMap(expressionsOf);
  assert(expressions.length > 1, "the scripts' expressions are not found");
  assert(!sources.some((source) => source.includes("new RegExp")), "an expression is made of a text");
  const units = ["a", "*", "**", "_", "__", "~~", "`", "``", "`a", "``a`", "[", "](", "[a](", "[a](x", "![", "\\", "<", "<http://", "https://a.", ".", " ", "\t", "\n", "a\n", "a\n\n", "- ", "- a\n", "> ", "#", "# ", "|", "|-", "| - ", "a|b\n", "- - ", "1. ", "*a ", "**a ", "_a ", "~~a ", "*a*", "[a](x \"", "- [ ] ", "  - a\n", "\u2028", "---", "* * ", "```\n", "~~~", "a b", "\"\\", "}", "a=", "\r", "\\|", ":", ":-", "\r\n"];
  const around = [["", ""], ["a|b\n", "x"], ["# ", "x"], ["- ", "\u2028x"], ["```", "`"], ["[a](", "x"], ["**", "x"], ["-", "x"], ["> - ", "x"], ["x{a=\"", "x"]];
  const slow = await page.evaluate(async ({ units, around, expressions, LENGTH, RENDER_MS_MAX, EXPRESSION_MS_MAX }) => {
    const [{ renderer }, { parse }] = await Promise.all([import("./page/markdown.js"), import("./page/metrics.js")]);
    const compiled = expressions.map(({ source, flags }) => new RegExp(source, flags));
    const slow = [];
    let longest = 0;
    const timed = (what, text, most, work) => {
      const begun = performance.now();
      work();
      const took = performance.now() - begun;
      longest = Math.max(longest, took);
      if (took > most) slow.push(`${what}: ${JSON.stringify(text.slice(0, 20))}: ${Math.round(took)} ms`);
    };
    for (const unit of units) {
      for (const [before, after] of around) {
        const text = before + unit.repeat(Math.ceil(LENGTH / unit.length)) + after;
        timed("the renderer", text, RENDER_MS_MAX, () => renderer(document.createElement("div"))(text));
        timed("the metrics", text, EXPRESSION_MS_MAX, () => parse(text));
        for (const expression of compiled) timed(expression.source, text, EXPRESSION_MS_MAX, () => text.replace(expression, ""));
      }
    }
    return { slow, longest };
  }, { units, around, expressions, LENGTH, RENDER_MS_MAX, EXPRESSION_MS_MAX });
  assert.deepEqual(slow.slow, []);
  return `${units.length * around.length} texts and ${expressions.length} expressions: ${Math.round(slow.longest)} ms at most`;
}

/** What the renderer makes of marks, as elements. */
export async function readsMarks(page) {
  const shown = await page.evaluate(async (given) => {
    const { renderer } = await import("./page/markdown.js");
    return given.map((text) => {
      const element = document.createElement("div");
      renderer(element)(text);
      return element.innerHTML;
    });
  }, MARKS.map(([text]) => text));
  assert.deepEqual(shown, MARKS.map(([, html]) => html));
}

const link = (address, words) => `<a href="${address}" target="_blank" rel="noopener noreferrer">${words}</a>`;
const MARKS = [
  ["a **b** *c* ~~d~~ __e__ _f_", "<p>a <strong>b</strong> <em>c</em> <del>d</del> <strong>e</strong> <em>f</em></p>"],
  ["***a*** snake_case_name 2 * 3 * 4 **a", "<p><strong><em>a</em></strong> snake_case_name 2 * 3 * 4 **a</p>"],
  ["`` a`b `` \\*c\\* `d", "<p><code> a`b </code> *c* `d</p>"],
  ["[a *b*](https://x.y/ \"t\") <https://z.z/>, https://w.w/.", `<p>${link("https://x.y/", "a <em>b</em>")} ${link("https://z.z/", "https://z.z/")}, ${link("https://w.w/", "https://w.w/")}.</p>`],
  ["[a](x y) [b](javascript:c) ![d](e)", "<p>[a](x y) [b](javascript:c) ![d](e)</p>"],
  ["a  \nb\\\nc\nd", "<p>a<br>b<br>c<br>d</p>"],
  ["# C# #\n## D #", "<h3 class=\"level-1\">C#</h3><h3 class=\"level-2\">D</h3>"],
  ["- a\n- [x] b\n  1. c\n- d", "<ul><li>a</li><li class=\"task\"><input type=\"checkbox\" disabled=\"\" checked=\"\" aria-label=\"done\">b<ol><li>c</li></ol></li><li>d</li></ul>"],
  ["3. a\n4. b", "<ol start=\"3\"><li>a</li><li>b</li></ol>"],
  ["> a\nb\n\n* * *", "<blockquote><p>a<br>b</p></blockquote><hr>"],
  ["a|b|c\n-|:-:|-:\n1|2\\|3|`4`", "<div class=\"table\" tabindex=\"0\" role=\"region\" aria-label=\"Table\"><table><thead><tr><th class=\"to-left\" scope=\"col\">a</th><th class=\"to-center\" scope=\"col\">b</th><th class=\"to-right\" scope=\"col\">c</th></tr></thead><tbody><tr><td class=\"to-left\">1</td><td class=\"to-center\">2|3</td><td class=\"to-right\"><code>4</code></td></tr></tbody></table></div>"],
];
