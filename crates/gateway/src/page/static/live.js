// What the engine does now: models, memory, queues, speed, caches and latencies, of /health, /v1/models and /metrics.

import * as api from './api.js';
import { $, h, meter } from './dom.js';
import { ofLoaded, ofStored, others, pullForm } from './manage.js';
import { buckets, bytes, parse, quantile, short, time } from './metrics.js';
import * as models from './models.js';
import { plot } from './plot.js';

const EVERY_MS = 2000;
const SOON_MS = 500; // while a model is on its way
const SPAN_MS = 5 * 60000;
const COMPUTES = /^\/(v1\/(chat|completions|messages|responses|embeddings|rerank|score|classify)|api\/(chat|generate|embed)|embed|rerank|predict|completion|infill)/;

let timer = 0;
let controller = null;
let visible = false;
let before = null; // the last reading
const points = [];
let parts = null;

const rate = (now, then, seconds) => Math.max(0, now - then) / seconds;

/** One reading of everything. */
async function read(signal) {
  const or = (otherwise) => (error) => { if (error.name === 'AbortError') throw error; return otherwise; };
  const [health, text, pulls] = await Promise.all([api.health(signal), api.text('metrics', { signal }).catch(or('')), api.json('v1/models/pull', { signal }).catch(or({ data: [] }))]);
  const list = health.models ?? [];
  const sum = (of) => list.reduce((total, model) => total + (of(model) ?? 0), 0);
  return {
    at: Date.now(), health, list, pulls: pulls.data,
    latency: buckets(parse(text), 'hanzo_engine_http_request_duration_seconds', (route) => COMPUTES.test(route)),
    running: sum((model) => model.requests_running), waiting: sum((model) => model.requests_waiting),
    generated: sum((model) => model.totals?.generated_tokens), prompt: sum((model) => model.totals?.prompt_tokens),
    cached: sum((model) => model.totals?.prefix_hit_tokens), finished: sum((model) => model.totals?.requests_finished),
    uptime: health.engine?.uptime_ms ?? 0,
  };
}

function pointOf(now, then) {
  const point = { at: now.at, running: now.running, waiting: now.waiting, generated: null, prompt: null, p50: null, p95: null, cached: null };
  const again = then && now.uptime >= then.uptime && now.at - then.at < 5 * EVERY_MS; // else it was restarted, or not watched
  if (!again) return point;
  const seconds = (now.at - then.at) / 1000;
  const computed = Math.max(0, now.prompt - then.prompt);
  return {
    ...point,
    generated: rate(now.generated, then.generated, seconds), prompt: computed / seconds,
    cached: computed > 0 ? Math.min(1, Math.max(0, now.cached - then.cached) / computed) : null,
    p50: quantile(then.latency, now.latency, 0.5), p95: quantile(then.latency, now.latency, 0.95),
  };
}

async function look() {
  clearTimeout(timer);
  if (!visible || document.hidden) return;
  controller = new AbortController();
  try {
    const now = await read(controller.signal);
    points.push(pointOf(now, before));
    while (points.length > 0 && now.at - points[0].at > SPAN_MS) points.shift();
    before = now;
    draw(now);
  } catch (error) {
    if (error.name === 'AbortError') return;
    parts.state.textContent = error.status === 401 ? 'A key is wanted: set it under API key.' : 'The server cannot be reached.';
    parts.state.className = 'live-state bad';
  }
  const moves = before?.list.some((model) => ['loading', 'queued', 'draining'].includes(model.state));
  if (visible) timer = setTimeout(look, moves ? SOON_MS : EVERY_MS);
}

/** Looks again, when what was just asked for may be seen. */
function soon() {
  clearTimeout(timer);
  if (visible) timer = setTimeout(look, 200);
}

function modelCard(model) {
  const listed = models.all().find((other) => other.id === model.name);
  const kv = model.kv ?? {};
  const totals = model.totals ?? {};
  const facts = [
    ['Device', model.device], ['Context', model.context_tokens_max > 0 && `${short(model.context_tokens_max)} tokens`],
    ['Weights', model.memory && bytes(model.memory.weights_bytes)], ['Answers', totals.requests_finished !== undefined && short(totals.requests_finished)],
    ['Prompt tokens from cache', totals.prompt_tokens > 0 && `${Math.round((100 * totals.prefix_hit_tokens) / totals.prompt_tokens)} %`],
    ['Can', listed?.capabilities?.join(', ')],
  ].filter(([, value]) => value);
  return h('li', { class: 'model-card' },
    h('div', { class: 'model-head' }, h('h3', {}, model.name), h('span', { class: `chip ${model.state}` }, model.state), model.state === 'ready' && ofLoaded(model.name, soon)),
    model.error && h('p', { class: 'problem' }, model.error),
    model.load_progress !== undefined && meter('Loading', model.load_progress, `${Math.round(model.load_progress * 100)} %`),
    kv.blocks_total > 0 && meter('Context memory in use', kv.blocks_used / kv.blocks_total, `${short(kv.blocks_used * kv.block_tokens)} of ${short(kv.blocks_total * kv.block_tokens)} tokens`),
    kv.blocks_total > 0 && meter('Kept for reuse', kv.blocks_cached / kv.blocks_total, `${short(kv.blocks_cached * kv.block_tokens)} tokens`),
    model.queue_capacity > 0 && meter('Queue', model.requests_waiting / model.queue_capacity, `${model.requests_waiting} waiting, ${model.requests_running} running`),
    h('dl', { class: 'facts' }, facts.map(([name, value]) => h('div', {}, h('dt', {}, name), h('dd', {}, value)))));
}

function tile(label, value, more) {
  return h('div', { class: 'tile' }, h('dt', {}, label), h('dd', {}, h('strong', {}, value), more && h('span', {}, more)));
}

/** Shows a list anew only where it is another one, so that what is focused in it stays. */
function same(element, list, key, show) {
  const shown = JSON.stringify(list.map(key));
  if (element.dataset.shown === shown) return;
  const focused = element.contains(document.activeElement) ? document.activeElement.getAttribute('aria-label') : null;
  element.dataset.shown = shown;
  element.replaceChildren(...list.map(show));
  if (focused) [...element.querySelectorAll('button')].find((one) => one.getAttribute('aria-label') === focused)?.focus();
}

function draw(now) {
  const words = { ok: 'Serving', loading: 'Loading', empty: 'No model is loaded', draining: 'Shutting down', unavailable: `The engine does not answer: ${now.health.reason ?? ''}` };
  parts.state.textContent = words[now.health.status] ?? now.health.status;
  parts.state.className = `live-state ${{ ok: 'good', unavailable: 'bad' }[now.health.status] ?? ''}`;
  const last = points.at(-1);
  const engine = now.health.engine ?? {};
  const hits = now.prompt > 0 ? `${Math.round((100 * now.cached) / now.prompt)} %` : '–';
  parts.tiles.replaceChildren(
    tile('Running', String(now.running), now.waiting > 0 ? `${now.waiting} waiting` : 'none waiting'),
    tile('Generating', last.generated === null ? '–' : short(last.generated), 'tokens/s'),
    tile('Reading', last.prompt === null ? '–' : short(last.prompt), 'tokens/s'),
    tile('From cache', hits, 'of prompt tokens'),
    tile('Memory', engine.memory_used_bytes === undefined ? '–' : bytes(engine.memory_used_bytes), engine.memory_budget_bytes ? `of ${bytes(engine.memory_budget_bytes)}` : ''),
    tile('Up for', engine.uptime_ms === undefined ? '–' : time(engine.uptime_ms), `version ${now.health.version ?? '?'}`));
  const loaded = new Set(now.list.map((model) => model.name));
  const stored = models.all().filter((model) => model.state === 'stored' && !loaded.has(model.id));
  same(parts.models, now.list, (model) => model, modelCard);
  others(parts.pulls, now.pulls);
  parts.none.hidden = now.list.length > 0;
  parts.stored.hidden = stored.length === 0;
  same(parts.storedList, stored, (model) => model.id, (model) => h('li', {}, h('span', {}, model.id), ofStored(model.id, soon)));
  const watched = points.at(-1).at - points[0].at;
  const span = [60000, 120000, SPAN_MS].find((ms) => ms >= watched) ?? SPAN_MS;
  for (const one of parts.plots) one.draw(points, span);
}

/** Starts or ends looking. */
export function show(on) {
  visible = on;
  clearTimeout(timer);
  if (on) look();
  else controller?.abort();
}

export function setUp() {
  const seconds = (value) => (value < 1 ? `${Math.round(value * 1000)} ms` : `${value.toFixed(value < 10 ? 1 : 0)} s`);
  const plots = [
    plot({ title: 'Tokens each second', series: [{ name: 'generated', key: 'generated', fill: true }, { name: 'read', key: 'prompt' }], format: short, least: 10 }),
    plot({ title: 'Requests', series: [{ name: 'running', key: 'running', fill: true }, { name: 'waiting', key: 'waiting' }], format: short, least: 4 }),
    plot({ title: 'Time to the end of an answer', series: [{ name: 'median', key: 'p50' }, { name: '95th percentile', key: 'p95' }], format: seconds, least: 0.1 }),
    plot({ title: 'Prompt tokens from cache', series: [{ name: 'share', key: 'cached', fill: true }], format: (value) => `${Math.round(value * 100)} %`, least: 1 }),
  ];
  parts = {
    state: h('p', { class: 'live-state' }, 'Looking…'), tiles: h('dl', { class: 'tiles' }),
    models: h('ul', { class: 'model-cards' }), none: h('p', { class: 'note', hidden: true }, 'None is loaded. One that is on disk is loaded when it is first asked.'),
    storedList: h('ul', { class: 'stored' }), pulls: h('ul', { class: 'pulls' }), plots,
  };
  parts.stored = h('section', { 'aria-label': 'Models on disk', hidden: true }, h('h2', {}, 'On disk'), parts.storedList);
  $('live').replaceChildren(h('div', { class: 'live-inner' }, parts.state, parts.tiles,
    h('section', { 'aria-label': 'Plots' }, h('h2', { class: 'hidden' }, 'The last minutes'), h('div', { class: 'plots' }, plots.map((one) => one.element))),
    h('section', { 'aria-label': 'Models in memory' }, h('h2', {}, 'Models'), parts.none, parts.models), parts.stored, pullForm(parts.pulls)));
  document.addEventListener('visibilitychange', () => { if (visible && !document.hidden) look(); });
}
