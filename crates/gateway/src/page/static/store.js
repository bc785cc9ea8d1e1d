// Conversations and settings, kept in this browser and nowhere else.

const INDEX = 'hanzo.conversations';
const one = (id) => `hanzo.conversation.${id}`;
const SETTINGS = 'hanzo.settings';

let full = false; // told once, until something fits again

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

/** What lists show: {id, title, updated}, the latest first. */
export function index() {
  const list = read(INDEX, []);
  return Array.isArray(list) ? list.filter((entry) => entry && typeof entry.id === 'string') : [];
}

export function load(id) {
  const conversation = read(one(id), null);
  return conversation && Array.isArray(conversation.messages) ? conversation : null;
}

export function create() {
  const random = crypto.getRandomValues(new Uint8Array(8));
  const id = Array.from(random, (byte) => byte.toString(16).padStart(2, '0')).join('');
  return { id, title: '', created: Date.now(), updated: Date.now(), model: '', messages: [] };
}

export function save(conversation) {
  conversation.updated = Date.now();
  if (!write(one(conversation.id), conversation)) return;
  const entry = { id: conversation.id, title: conversation.title, updated: conversation.updated };
  write(INDEX, [entry, ...index().filter((other) => other.id !== conversation.id)]);
}

export function rename(id, title) {
  const conversation = load(id);
  if (conversation) write(one(id), { ...conversation, title });
  write(INDEX, index().map((entry) => (entry.id === id ? { ...entry, title } : entry)));
}

export function remove(id) {
  try { localStorage.removeItem(one(id)); } catch { /* nothing was kept */ }
  write(INDEX, index().filter((entry) => entry.id !== id));
}

/** Another tab changed something. */
export function onChange(listener) {
  addEventListener('storage', (event) => {
    if (event.key === null || event.key.startsWith('hanzo.conversation')) listener();
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
