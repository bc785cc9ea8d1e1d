// npm's @modelcontextprotocol/sdk, as it is, as a client of `/mcp`: tools, progress, resources, errors.
// usage: node mcp_js.mjs NODE_MODULES URL
import assert from "node:assert/strict";
import path from "node:path";
import { pathToFileURL } from "node:url";

const [modules, url] = process.argv.slice(2);
const sdk = (file) => import(pathToFileURL(path.join(modules, "@modelcontextprotocol/sdk/dist/esm", file)).href);
const { Client } = await sdk("client/index.js");
const { StreamableHTTPClientTransport } = await sdk("client/streamableHttp.js");

const client = new Client({ name: "check", version: "1" });
await client.connect(new StreamableHTTPClientTransport(new URL(url)));
const { tools } = await client.listTools();
assert(["hanzo_infer", "hanzo_embed", "hanzo_rerank", "hanzo_list_models"].every((name) => tools.some((tool) => tool.name === name)));
let progress = 0;
// It checks the result by the tool's schema itself.
const answer = await client.callTool({ name: "hanzo_infer", arguments: { prompt: "Hello", max_tokens: 12, temperature: 0 } }, undefined, { onprogress: () => { progress += 1; } });
assert(!answer.isError && answer.structuredContent.text === answer.content[0].text && progress > 0, JSON.stringify(answer));
const wrong = await client.callTool({ name: "hanzo_infer", arguments: { prompt: "a", temperature: 9 } });
assert(wrong.isError && wrong.content[0].text.startsWith("temperature: "), JSON.stringify(wrong));
const { resources } = await client.listResources();
const stats = resources.find((resource) => resource.uri === "hanzo://stats");
assert(JSON.parse((await client.readResource({ uri: stats.uri })).contents[0].text).models.length > 0);
await assert.rejects(() => client.readResource({ uri: "hanzo://models/none" }), /models\/none/);
await client.close();
