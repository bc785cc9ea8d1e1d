// Which models there are, and the one that is picked.

import * as api from './api.js';
import { $, h } from './dom.js';

const PICKED = 'hanzo.model';
const EVERY_MS = 15000;
const SOON_MS = 1500; // while one is on its way

let models = [];
let timer = 0;
const listeners = new Set();

export const all = () => models;
export const picked = () => models.find((model) => model.id === $('model').value);
export const onChange = (listener) => listeners.add(listener);

const talks = (model) => !model.capabilities || model.capabilities.length === 0 || model.capabilities.includes('chat');

/** Whether the picked model is known to take this. */
export const can = (what) => picked()?.capabilities?.includes(what) ?? false;

export function pick(id) {
  if (models.some((model) => model.id === id)) $('model').value = id;
  changed();
}

function remembered() {
  try { return localStorage.getItem(PICKED); } catch { return null; }
}

function changed() {
  const model = picked();
  $('model-dot').className = `dot ${model?.state ?? ''}`;
  $('model').title = model ? `${model.id}: ${words(model)}` : '';
  for (const listener of listeners) listener(model);
}

/** A state in words. */
export function words(model) {
  switch (model.state) {
    case 'ready': return 'ready';
    case 'stored': return 'on disk, loaded when first asked';
    case 'failed': return `failed${model.error ? `: ${model.error}` : ''}`;
    default: return model.state;
  }
}

function show() {
  const select = $('model');
  const before = select.value || remembered();
  const groups = [
    ['Ready', (model) => model.state === 'ready'],
    ['On their way', (model) => ['loading', 'queued', 'draining'].includes(model.state)],
    ['On disk', (model) => model.state === 'stored'],
    ['Failed', (model) => ['failed', 'unknown', 'unloaded'].includes(model.state)],
  ];
  const chat = models.filter(talks);
  const options = groups.map(([label, of]) => {
    const own = chat.filter(of);
    return own.length > 0 && h('optgroup', { label }, own.map((model) => h('option', { value: model.id }, model.id)));
  });
  const signature = JSON.stringify(chat.map((model) => [model.id, model.state]));
  if (select.dataset.shown !== signature) {
    select.dataset.shown = signature;
    select.replaceChildren(...options.filter(Boolean));
    if (chat.length === 0) select.append(h('option', { value: '' }, models.length > 0 ? 'No model here chats' : 'No model yet'));
    if (chat.some((model) => model.id === before)) select.value = before;
  }
  changed();
}

/** Asks again what there is. */
export async function refresh() {
  clearTimeout(timer);
  try {
    models = (await api.json('v1/models')).data;
    show();
  } catch (error) {
    if (error.status !== 401 && models.length === 0) $('model').replaceChildren(h('option', { value: '' }, 'Not reached'));
  }
  const busy = models.some((model) => ['loading', 'queued'].includes(model.state));
  clearTimeout(timer);
  timer = setTimeout(() => { if (document.hidden) timer = setTimeout(refresh, EVERY_MS); else refresh(); }, busy ? SOON_MS : EVERY_MS);
}

export function setUp() {
  $('model').addEventListener('change', () => {
    try { localStorage.setItem(PICKED, $('model').value); } catch { /* not remembered */ }
    changed();
  });
  document.addEventListener('visibilitychange', () => { if (!document.hidden) refresh(); });
}
