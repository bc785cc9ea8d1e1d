// Markdown as models write it, made into elements. Nothing in it becomes HTML, nothing is fetched, and a link goes only to
// http, https or mail.

import { copyButton, h } from './dom.js';
import { inline } from './inline.js';
import { cells, closes, depthOf, fence, heading, isRule, item, quoted, sidesOf } from './lines.js';

const DEPTH_MAX = 8; // lists and quotes inside each other

const isEmpty = (line) => line.trim() === '';
const begins = (line) => fence(line) !== null || heading(line) !== null || isRule(line) || quoted(line) !== null || item(line) !== null;

/** The blocks of a text: each {kind, source, …}. A block whose source is the same is the same. */
export function blocks(text) {
  const lines = text.split('\n');
  const found = [];
  let at = 0;
  while (at < lines.length) {
    if (isEmpty(lines[at])) {
      at += 1;
      continue;
    }
    const { end, ...block } = blockAt(lines, at);
    found.push({ ...block, source: lines.slice(at, end).join('\n') });
    at = end;
  }
  return found;
}

/** The block that begins at a line, and the line after it. */
function blockAt(lines, from) {
  const line = lines[from];
  let end = from + 1;
  const upTo = (isOver) => { while (end < lines.length && !isOver(lines[end])) end += 1; };
  const open = fence(line);
  if (open) {
    upTo((one) => closes(one, open));
    return { kind: 'code', end: Math.min(end + 1, lines.length), code: lines.slice(from + 1, end).join('\n'), language: open.language };
  }
  const title = heading(line);
  if (title) return { kind: 'heading', end, ...title };
  if (isRule(line)) return { kind: 'rule', end };
  if (quoted(line) !== null) {
    upTo((one) => quoted(one) === null && (isEmpty(one) || begins(one)));
    return { kind: 'quote', end, inner: lines.slice(from, end).map((one) => quoted(one) ?? one).join('\n') };
  }
  if (item(line)) {
    end = endOfList(lines, from);
    return { kind: 'list', end, lines: lines.slice(from, end) };
  }
  if (line.includes('|') && end < lines.length && sidesOf(lines[end])) {
    end += 1;
    upTo((one) => isEmpty(one) || !one.includes('|'));
    return { kind: 'table', end, rows: lines.slice(from, end) };
  }
  upTo((one) => isEmpty(one) || begins(one));
  return { kind: 'paragraph', end, words: lines.slice(from, end).join('\n') };
}

/** The line after a list: items, what is indented below them, and single empty lines between. */
function endOfList(lines, from) {
  const belongs = (line) => item(line) !== null && !isRule(line) || (!isEmpty(line) && depthOf(line) >= 2);
  let at = from + 1;
  while (at < lines.length) {
    const line = lines[at];
    if (isEmpty(line)) {
      if (!belongs(lines[at + 1] ?? '')) break;
    } else if (!belongs(line) && (isEmpty(lines[at - 1]) || fence(line) || heading(line) || quoted(line) !== null)) {
      break;
    }
    at += 1;
  }
  return at;
}

function list(lines, depth) {
  const { indent, number } = item(lines[0]);
  const ordered = number !== null;
  const items = [];
  for (const line of lines) {
    const found = item(line);
    const isSibling = found && found.indent <= indent + 1 && (found.number !== null) === ordered;
    if (isSibling) items.push([found.words]);
    else items.at(-1).push(line);
  }
  const element = h(ordered ? 'ol' : 'ul', { start: ordered && number !== 1 ? number : undefined });
  for (const [first, ...rest] of items) {
    const shortest = rest.reduce((least, one) => (isEmpty(one) ? least : Math.min(least, depthOf(one))), Infinity);
    const inner = [first, ...rest.map((one) => one.slice(Number.isFinite(shortest) ? shortest : 0))].join('\n');
    const task = taskOf(inner);
    const children = blocks(task ? task.words : inner);
    const tight = children.length > 0 && children[0].kind === 'paragraph';
    element.append(h('li', { class: task ? 'task' : null },
      task && h('input', { type: 'checkbox', disabled: true, checked: task.done, 'aria-label': task.done ? 'done' : 'open' }),
      tight && inline(children[0].words),
      children.slice(tight ? 1 : 0).map((block) => render(block, depth + 1))));
  }
  return element;
}

/** An item that begins with a box to tick: {done, words}; null where it is none. */
function taskOf(text) {
  const box = text.slice(0, 3);
  if (!['[ ]', '[x]', '[X]'].includes(box)) return null;
  const words = text.slice(3);
  const space = depthOf(words);
  return space > 0 ? { done: box !== '[ ]', words: words.slice(space) } : null;
}

function table(rows) {
  const sides = sidesOf(rows[1]);
  const row = (line, tag) => h('tr', {}, cells(line).slice(0, sides.length).map((cell, at) => h(tag, { class: `to-${sides[at]}`, scope: tag === 'th' ? 'col' : null }, inline(cell))));
  return h('div', { class: 'table', tabindex: 0, role: 'region', 'aria-label': 'Table' },
    h('table', {}, h('thead', {}, row(rows[0], 'th')), h('tbody', {}, rows.slice(2).map((line) => row(line, 'td')))));
}

/** A block of code with its language and a button that copies it. */
export function codeBlock(code, language = '') {
  return h('figure', { class: 'code' },
    h('figcaption', {}, h('span', {}, language || 'text'), copyButton(() => code, 'Copy code')),
    h('pre', { tabindex: 0, 'aria-label': language ? `${language} code` : 'Code' }, h('code', {}, code)));
}

function render(block, depth) {
  if (depth > DEPTH_MAX) return h('p', {}, block.source);
  switch (block.kind) {
    case 'code': return codeBlock(block.code, block.language);
    // A page has headings of its own: an answer's begin below them.
    case 'heading': return h(`h${Math.min(Math.max(block.level + 1, 3), 6)}`, { class: `level-${block.level}` }, inline(block.words));
    case 'rule': return h('hr');
    case 'quote': return h('blockquote', {}, blocks(block.inner).map((inner) => render(inner, depth + 1)));
    case 'list': return list(block.lines, depth);
    case 'table': return table(block.rows);
    default: return h('p', {}, inline(block.words));
  }
}

/** Shows a text in an element, and again as it grows: blocks that have not changed stay as they are. */
export function renderer(element) {
  let shown = [];
  return (text) => {
    const wanted = blocks(text);
    let same = 0;
    while (same < shown.length && same < wanted.length && shown[same].source === wanted[same].source && shown[same].kind === wanted[same].kind) same += 1;
    for (const old of shown.slice(same)) old.node.remove();
    const fresh = wanted.slice(same).map((block) => ({ ...block, node: render(block, 0) }));
    for (const block of fresh) element.append(block.node);
    shown = shown.slice(0, same).concat(fresh);
  };
}
