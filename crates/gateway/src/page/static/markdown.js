// Markdown as models write it, made into elements. Nothing in it becomes HTML, nothing is fetched, and a link goes only to
// http, https or mail.

import { copyButton, h } from './dom.js';

const FENCE = /^ {0,3}(`{3,}|~{3,})\s*([^`]*)$/;
const ITEM = /^(\s*)([-*+]|\d{1,9}[.)])\s+(.*)$/;
const RULE = /^ {0,3}([-*_])(\s*\1){2,}\s*$/;
const HEADING = /^ {0,3}(#{1,6})\s+(.*?)\s*#*\s*$/;
const QUOTE = /^ {0,3}>\s?/;
const ROW = /^\s*\|?.*\|.*$/;
const DIVIDER = /^\s*\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*$/;
const DEPTH_MAX = 8; // lists and quotes inside each other
const INLINE_MAX = 20000; // characters of one paragraph: what is longer is shown as it is

/** The blocks of a text: each {kind, source, …}. A block whose source is the same is the same. */
export function blocks(text) {
  const lines = text.split('\n');
  const found = [];
  let at = 0;
  const begins = (line) => FENCE.test(line) || HEADING.test(line) || RULE.test(line) || QUOTE.test(line) || ITEM.test(line);
  const push = (kind, from, more) => found.push({ kind, source: lines.slice(from, at).join('\n'), ...more });
  while (at < lines.length) {
    const from = at;
    const line = lines[at];
    const fence = FENCE.exec(line);
    if (line.trim() === '') {
      at += 1;
    } else if (fence) {
      const close = new RegExp(`^ {0,3}${fence[1][0]}{${fence[1].length},}\\s*$`);
      at += 1;
      while (at < lines.length && !close.test(lines[at])) at += 1;
      const code = lines.slice(from + 1, at).join('\n');
      at = Math.min(at + 1, lines.length);
      push('code', from, { code, language: fence[2].trim().split(/\s+/)[0] });
    } else if (HEADING.test(line)) {
      at += 1;
      const [, marks, words] = HEADING.exec(line);
      push('heading', from, { level: marks.length, words });
    } else if (RULE.test(line)) {
      at += 1;
      push('rule', from);
    } else if (QUOTE.test(line)) {
      while (at < lines.length && (QUOTE.test(lines[at]) || (lines[at].trim() !== '' && !begins(lines[at])))) at += 1;
      push('quote', from, { inner: lines.slice(from, at).map((one) => one.replace(QUOTE, '')).join('\n') });
    } else if (ITEM.test(line)) {
      at = endOfList(lines, at);
      push('list', from, { lines: lines.slice(from, at) });
    } else if (ROW.test(line) && at + 1 < lines.length && lines[at + 1].includes('-') && DIVIDER.test(lines[at + 1])) {
      at += 2;
      while (at < lines.length && lines[at].trim() !== '' && lines[at].includes('|')) at += 1;
      push('table', from, { rows: lines.slice(from, at) });
    } else {
      at += 1;
      while (at < lines.length && lines[at].trim() !== '' && !begins(lines[at])) at += 1;
      push('paragraph', from, { words: lines.slice(from, at).join('\n') });
    }
  }
  return found;
}

/** The line after a list: items, what is indented below them, and single empty lines between. */
function endOfList(lines, from) {
  let at = from + 1;
  while (at < lines.length) {
    const line = lines[at];
    const next = lines[at + 1] ?? '';
    const belongs = (one) => ITEM.test(one) && !RULE.test(one) || /^\s{2,}\S/.test(one);
    if (line.trim() === '') {
      if (!belongs(next)) break;
    } else if (!belongs(line) && (lines[at - 1].trim() === '' || FENCE.test(line) || HEADING.test(line) || QUOTE.test(line))) {
      break;
    }
    at += 1;
  }
  return at;
}

function list(lines, depth) {
  const [, indent, mark] = ITEM.exec(lines[0]);
  const ordered = /\d/.test(mark);
  const items = [];
  for (const line of lines) {
    const item = ITEM.exec(line);
    const isSibling = item && item[1].length <= indent.length + 1 && /\d/.test(item[2]) === ordered;
    if (isSibling) items.push([item[3]]);
    else items.at(-1).push(line);
  }
  const start = ordered ? Number.parseInt(mark, 10) : undefined;
  const element = h(ordered ? 'ol' : 'ul', { start: start === 1 ? undefined : start });
  for (const [first, ...rest] of items) {
    const shortest = Math.min(...rest.filter((one) => one.trim()).map((one) => one.length - one.trimStart().length));
    const inner = [first, ...rest.map((one) => one.slice(Number.isFinite(shortest) ? shortest : 0))].join('\n');
    const task = /^\[([ xX])\]\s+/.exec(inner);
    const children = blocks(task ? inner.slice(task[0].length) : inner);
    const tight = children.length > 0 && children[0].kind === 'paragraph';
    element.append(h('li', { class: task ? 'task' : null },
      task && h('input', { type: 'checkbox', disabled: true, checked: task[1] !== ' ', 'aria-label': task[1] === ' ' ? 'open' : 'done' }),
      tight && inline(children[0].words),
      children.slice(tight ? 1 : 0).map((block) => render(block, depth + 1))));
  }
  return element;
}

function cells(row) {
  const text = row.trim().replace(/^\|/, '').replace(/(?<!\\)\|$/, '');
  return text.split(/(?<!\\)\|/).map((cell) => cell.trim().replaceAll('\\|', '|'));
}

function table(rows) {
  const sides = cells(rows[1]).map((cell) => (/^:-+:$/.test(cell) ? 'center' : /-:$/.test(cell) ? 'right' : 'left'));
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

const INLINE = /\\([\\`*_{}[\]()#+\-.!|~>])|(`+)([^`](?:.*?[^`])?)\2(?!`)|!?\[([^\]\n]*)\]\(\s*<?([^\s)>]+)>?(?:\s+"[^"]*")?\s*\)|\*\*(?=\S)(.+?)(?<=\S)\*\*|(?<![\w_])__(?=\S)(.+?)(?<=\S)__(?![\w_])|\*(?=[^\s*])(.+?)(?<=[^\s*])\*(?!\*)|(?<![\w_])_(?=[^\s_])(.+?)(?<=[^\s_])_(?![\w_])|~~(?=\S)(.+?)(?<=\S)~~|<?(https?:\/\/[^\s<>"')\]]*[^\s<>"')\].,;:!?])>?/s;

/** Words with emphasis, code and links. */
function inline(text, depth = 0) {
  const parts = [];
  let rest = text;
  while (rest) {
    const match = depth > DEPTH_MAX || rest.length > INLINE_MAX ? null : INLINE.exec(rest);
    if (!match) {
      parts.push(...broken(rest));
      break;
    }
    parts.push(...broken(rest.slice(0, match.index)), inlineElement(match, depth));
    rest = rest.slice(match.index + match[0].length);
  }
  return parts;
}

function inlineElement(match, depth) {
  const [whole, escaped, , code, label, address, strong, strong2, em, em2, struck, bare] = match;
  if (escaped !== undefined) return escaped;
  if (code !== undefined) return h('code', {}, code);
  if (address !== undefined) return link(address, label ? inline(label, depth + 1) : [address], whole);
  if (bare !== undefined) return link(bare, [bare], whole);
  if (struck !== undefined) return h('del', {}, inline(struck, depth + 1));
  const heavy = strong ?? strong2;
  return heavy !== undefined ? h('strong', {}, inline(heavy, depth + 1)) : h('em', {}, inline(em ?? em2, depth + 1));
}

function link(address, words, whole) {
  let url;
  try { url = new URL(address); } catch { return whole; }
  if (!['http:', 'https:', 'mailto:'].includes(url.protocol)) return whole;
  return h('a', { href: url.href, target: '_blank', rel: 'noopener noreferrer' }, words);
}

/** Two spaces or a backslash before the end of a line break it; so does any line's end in what models write. */
function broken(text) {
  const lines = text.split(/ *\\?\n/);
  return lines.flatMap((line, at) => (at === 0 ? [line] : [h('br'), line]));
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
    element.append(...fresh.map((block) => block.node));
    shown = [...shown.slice(0, same), ...fresh];
  };
}
