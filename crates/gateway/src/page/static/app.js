// The page as a whole: its views, the list of conversations, the key, the theme.

import * as api from './api.js';
import * as chat from './chat.js';
import { $, download, h, icon, toast } from './dom.js';
import * as live from './live.js';
import * as models from './models.js';
import * as settings from './settings.js';
import * as store from './store.js';

const THEMES = ['auto', 'light', 'dark'];

// ---------------------------------------------------------------- views

function route() {
  const isLive = location.hash.startsWith('#/live');
  $('chat').hidden = isLive;
  $('live').hidden = !isLive;
  $('picker').hidden = isLive;
  $('bar-title').hidden = !isLive;
  $('settings-open').hidden = isLive;
  if (isLive) { $('settings').hidden = true; document.body.classList.remove('with-panel'); }
  for (const [id, here] of [['to-chat', !isLive], ['to-live', isLive]]) {
    if (here) $(id).setAttribute('aria-current', 'page');
    else $(id).removeAttribute('aria-current');
  }
  document.title = isLive ? 'Live · Hanzo Engine' : 'Hanzo Engine';
  live.show(isLive);
  menu(false);
}

function menu(open) {
  document.body.classList.toggle('with-menu', open);
  $('veil').hidden = !open;
  $('side-open').setAttribute('aria-expanded', String(open));
  // What is out of sight on a phone is out of reach of the keyboard too.
  $('side').inert = !open && matchMedia('(max-width: 52rem)').matches;
  if (open) $('side-close').focus();
}

// ---------------------------------------------------------------- conversations

const LIST_STEP = 100; // entries: what is out of sight costs nothing
const shown = new Map(); // id → {element, title}
let shownMax = LIST_STEP;

/** Shows the latest conversations. An entry that has not changed stays as it is. */
function showList() {
  const all = store.index();
  const list = all.slice(0, shownMax);
  const current = chat.current();
  const older = all.slice(shownMax).find((entry) => entry.id === current);
  if (older) list.push(older);
  $('conversations-head').hidden = all.length === 0;
  $('conversations-more').hidden = all.length <= shownMax;
  $('conversations-more').textContent = `Show older (${all.length - list.length})`;
  const wanted = new Set(list.map((entry) => entry.id));
  for (const [id, { element }] of shown) {
    if (wanted.has(id)) continue;
    element.remove();
    shown.delete(id);
  }
  const parent = $('conversations');
  let place = parent.firstElementChild;
  for (const entry of list) {
    const element = entryView(entry, entry.id === current);
    if (place && !place.isConnected) place = element;
    if (element === place) place = place.nextElementSibling;
    else parent.insertBefore(element, place);
  }
}

function entryView(entry, isHere) {
  const title = entry.title || 'Untitled';
  if (shown.get(entry.id)?.title !== title) {
    const mini = (name, label, action) => h('button', { type: 'button', class: 'mini', 'aria-label': `${label} “${title}”`, title: label, onclick: action }, icon(name));
    const element = h('li', {},
      h('button', { type: 'button', class: 'title', onclick: () => openConversation(entry.id) }, title),
      h('span', { class: 'entry-tools' },
        mini('edit', 'Rename', () => rename(entry.id, title)),
        mini('download', 'Export', () => exportOne(entry.id)),
        mini('trash', 'Delete', () => remove(entry.id, title))));
    shown.get(entry.id)?.element.replaceWith(element);
    shown.set(entry.id, { element, title });
  }
  const { element } = shown.get(entry.id);
  element.className = isHere ? 'here' : '';
  if (isHere) element.firstElementChild.setAttribute('aria-current', 'true');
  else element.firstElementChild.removeAttribute('aria-current');
  return element;
}

function openConversation(id) {
  chat.open(id);
  location.hash = '#/chat';
  menu(false);
  $('draft').focus();
}

function rename(id, title) {
  const said = prompt('A name for this conversation', title);
  if (!said?.trim()) return;
  store.rename(id, said.trim());
  if (id === chat.current()) chat.retitle(said.trim());
  showList();
}

function exportOne(id) {
  const conversation = store.load(id);
  if (!conversation) return;
  const name = (conversation.title || 'conversation').replace(/[^\p{L}\p{N}]+/gu, '-').slice(0, 50);
  download(`${name}.md`, store.markdown(conversation), 'text/markdown');
  download(`${name}.json`, JSON.stringify(conversation, null, 2), 'application/json');
}

function remove(id, title) {
  if (!confirm(`Delete “${title}” from this browser?`)) return;
  store.remove(id);
  if (id === chat.current()) chat.open();
  showList();
}

// ---------------------------------------------------------------- the key

function showKey() {
  $('key-button').replaceChildren(icon('key'), h('span', {}, api.key.get() ? 'API key is set' : 'API key'));
}

function askKey(wanted) {
  const dialog = $('key-dialog');
  if (dialog.open) return;
  const input = h('input', { id: 'key-input', type: 'password', autocomplete: 'off', spellcheck: 'false', value: api.key.get() });
  const close = () => dialog.close();
  const form = h('form', { onsubmit: (event) => { event.preventDefault(); keep(input.value.trim()); } },
    h('h2', { id: 'key-head' }, wanted ? 'This engine asks for a key' : 'API key'),
    h('p', {}, 'It is kept in this tab until you close it, and sent to this engine alone.'),
    wanted && api.key.get() && h('p', { class: 'problem', role: 'alert' }, 'The key was not accepted.'),
    h('label', { for: 'key-input' }, 'Key'), input,
    h('div', { class: 'dialog-row' },
      h('button', { type: 'button', class: 'button', onclick: close }, 'Cancel'),
      h('button', { type: 'submit', class: 'button primary' }, 'Use it')));
  const keep = (value) => {
    api.key.set(value);
    showKey();
    close();
    models.refresh();
  };
  dialog.replaceChildren(form);
  dialog.showModal();
  input.focus();
}

// ---------------------------------------------------------------- health and theme

async function showHealth() {
  let [word, kind] = ['', ''];
  try {
    const { status } = await api.health();
    const words = { ok: ['', 'good'], loading: ['A model is being loaded…', 'busy'], empty: ['No model is loaded', ''], draining: ['Shutting down', 'busy'], unavailable: ['The engine does not answer', 'bad'] };
    [word, kind] = words[status] ?? ['', ''];
  } catch (error) {
    if (error.status !== 401) [word, kind] = ['The server cannot be reached', 'bad'];
  }
  const element = $('health');
  if (element.textContent !== word) element.textContent = word;
  element.className = `health ${kind}`;
}

function setTheme(theme) {
  if (theme === 'auto') delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  try { localStorage.setItem('hanzo.theme', theme); } catch { /* not remembered */ }
  const words = { auto: 'Theme: as the system', light: 'Theme: light', dark: 'Theme: dark' };
  $('theme-button').replaceChildren(icon(theme === 'dark' ? 'moon' : 'sun'), h('span', {}, words[theme]));
}

function setUp() {
  const label = (id, name, text) => $(id).replaceChildren(icon(name), h('span', {}, text));
  label('new-chat', 'plus', 'New conversation');
  label('to-chat', 'chat', 'Chat');
  label('to-live', 'live', 'Live');
  label('to-docs', 'docs', 'API');
  $('side-open').append(icon('menu'));
  $('side-close').append(icon('close'));
  $('side-open').addEventListener('click', () => menu(true));
  $('side-close').addEventListener('click', () => { menu(false); $('side-open').focus(); });
  $('veil').addEventListener('click', () => menu(false));
  $('side').addEventListener('keydown', (event) => { if (event.key === 'Escape') menu(false); });
  matchMedia('(max-width: 52rem)').addEventListener('change', () => menu(false));
  $('new-chat').addEventListener('click', () => openConversation());
  $('key-button').addEventListener('click', () => askKey(false));
  $('theme-button').addEventListener('click', () => {
    const now = document.documentElement.dataset.theme ?? 'auto';
    setTheme(THEMES[(THEMES.indexOf(now) + 1) % THEMES.length]);
  });
  setTheme(document.documentElement.dataset.theme ?? 'auto');
  addEventListener('hanzo-key-wanted', () => askKey(true));
  addEventListener('hanzo-storage-full', () => toast('This browser’s storage is full: what is said now is not kept. Delete or export older conversations.', 'bad'));
  addEventListener('hashchange', route);
  // Skipping to the main part is no view.
  document.querySelector('.skip').addEventListener('click', (event) => { event.preventDefault(); $('main').focus(); });
  store.onChange((id) => { chat.changed(id); showList(); });
  $('conversations-more').addEventListener('click', () => { shownMax += LIST_STEP; showList(); });
  showKey();
  models.setUp();
  settings.setUp();
  live.setUp();
  chat.setUp(showList);
  showList();
  route();
  models.refresh();
  showHealth();
  setInterval(() => { if (!document.hidden) showHealth(); }, 10000);
}

setUp();
