// Conversations and settings, kept in this browser and nowhere else. A conversation has two keys: its record, and its entry
// of the list. What is kept of one is written without a look at the others, however many there are.

const RECORD = 'hanzo.conversation.';
const ENTRY = 'hanzo.entry.';
const OLD_INDEX = 'hanzo.conversations'; // one list of all, which earlier versions wrote
const SETTINGS = 'hanzo.settings';

let full = false; // told once, until something fits again
const removed = new Set(); // ids that this tab removed
let entries = null; // id → {id, title, updated}; null until they have been read

function read(name, otherwise) {
  try {
    const text = localStorage.getItem(name);
    return text === null ? otherwise : JSON.parse(text);
  } catch {
    return otherwise;
  }
}

function write(name, value) {
  try {
    localStorage.setItem(name, JSON.stringify(value));
    full = false;
    return true;
  } catch {
    if (!full) dispatchEvent(new CustomEvent('hanzo-storage-full'));
    full = true;
    return false;
  }
}

function forget(name) {
  try { localStorage.removeItem(name); } catch { /* nothing was kept */ }
}

function keys() {
  try { return Object.keys(localStorage); } catch { return []; }
}

const isEntry = (entry) => typeof entry?.id === 'string' && typeof entry.updated === 'number';
const entryOf = ({ id, title, updated }) => ({ id, title: title ?? '', updated: updated ?? 0 });

/** Every entry, read once. */
function all() {
  if (entries) return entries;
  entries = new Map();
  const names = keys();
  for (const name of names.filter((one) => one.startsWith(ENTRY))) {
    const entry = read(name, null);
    if (isEntry(entry)) entries.set(entry.id, entry);
  }
  const old = read(OLD_INDEX, []);
  const titles = new Map((Array.isArray(old) ? old : []).filter(isEntry).map((entry) => [entry.id, entry]));
  forget(OLD_INDEX);
  // Records of earlier versions, and those whose entry was lost.
  for (const id of names.filter((one) => one.startsWith(RECORD)).map((one) => one.slice(RECORD.length))) {
    if (entries.has(id)) continue;
    const conversation = titles.get(id) ?? load(id);
    if (conversation) keep(entryOf({ ...conversation, id }));
  }
  return entries;
}

function keep(entry) {
  entries.set(entry.id, entry);
  write(ENTRY + entry.id, entry);
}

/** What lists show: {id, title, updated}, the latest first. */
export function index() {
  return [...all().values()].sort((a, b) => b.updated - a.updated);
}

export function load(id) {
  const conversation = read(RECORD + id, null);
  return conversation && Array.isArray(conversation.messages) ? conversation : null;
}

function newId() {
  const random = crypto.getRandomValues(new Uint8Array(8));
  return Array.from(random, (byte) => byte.toString(16).padStart(2, '0')).join('');
}

export function create() {
  return { id: newId(), title: '', created: Date.now(), updated: Date.now(), model: '', messages: [] };
}

/** Keeps a conversation, unless it was removed. Where another tab has kept it since it was read, it gets an id of its own, so
 * that neither tab loses messages. Says whether that was so. */
export function save(conversation) {
  if (removed.has(conversation.id)) return false;
  all();
  const kept = read(ENTRY + conversation.id, null);
  const isCopy = isEntry(kept) && kept.updated > conversation.updated;
  if (isCopy) conversation.id = newId();
  conversation.updated = Math.max(Date.now(), conversation.updated + 1);
  if (write(RECORD + conversation.id, conversation)) keep(entryOf(conversation));
  return isCopy;
}

export function rename(id, title) {
  const conversation = load(id);
  if (conversation) write(RECORD + id, { ...conversation, title });
  const entry = all().get(id);
  if (entry) keep({ ...entry, title });
}

export function remove(id) {
  removed.add(id);
  all().delete(id);
  forget(RECORD + id);
  forget(ENTRY + id);
}

/** Another tab changed a conversation: `listener` is told its id, or nothing where it may be any. */
export function onChange(listener) {
  addEventListener('storage', (event) => {
    if (event.key === null) {
      entries = null;
      listener();
    } else if (event.key.startsWith(ENTRY)) {
      const id = event.key.slice(ENTRY.length);
      const entry = read(event.key, null);
      if (isEntry(entry)) all().set(id, entry);
      else all().delete(id);
      listener(id);
    }
  });
}

export const settings = {
  get: () => ({ ...read(SETTINGS, {}) }),
  set: (values) => write(SETTINGS, values),
};

/** A conversation as Markdown. */
export function markdown(conversation) {
  const names = { user: 'You', assistant: 'Assistant', tool: 'Tool' };
  const parts = conversation.messages.map((message) => {
    const lines = [`## ${names[message.role] ?? message.role}`, ''];
    if (message.reasoning) lines.push('<details><summary>Reasoning</summary>', '', message.reasoning, '', '</details>', '');
    if (message.content) lines.push(message.content, '');
    for (const call of message.tool_calls ?? []) lines.push('```json', `${call.name}(${call.arguments})`, '```', '');
    return lines.join('\n');
  });
  const system = conversation.system ? [`> ${conversation.system.replaceAll('\n', '\n> ')}`, ''] : [];
  return [`# ${conversation.title || 'Conversation'}`, '', ...system, ...parts].join('\n');
}
