// Emphasis, code and links inside a paragraph, found by one pass over its characters. Each look ahead is answered from a
// table of the text, so a mark that is never closed costs no second reading of what follows.

import { h } from './dom.js';
import { isSpace, runEnd } from './lines.js';

const DEPTH_MAX = 8; // emphasis inside emphasis
const LENGTH_MAX = 20000; // characters of one paragraph: a longer one is shown as it is
const ESCAPED = '\\`*_{}[]()#+-.!|~>';
const BEGINS = '\\`![*_~<h'; // characters that may begin something
const MARKS = [['**', 'strong'], ['__', 'strong'], ['*', 'em'], ['_', 'em'], ['~~', 'del']];

const isWord = (text, at) => {
  const c = text[at];
  return c !== undefined && (c === '_' || (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'));
};

/** Places that a search may stop at, by name. */
const STOPS = {
  label: (text, at) => text[at] === ']' || text[at] === '\n',
  address: (text, at) => text[at] === ')' || text[at] === '>' || isSpace(text, at),
  words: (text, at) => !isSpace(text, at),
  title: (text, at) => text[at] === '"',
  '**': (text, at) => text[at] === '*' && text[at + 1] === '*' && at > 0 && !isSpace(text, at - 1),
  __: (text, at) => text[at] === '_' && text[at + 1] === '_' && at > 0 && !isSpace(text, at - 1) && !isWord(text, at + 2),
  '*': (text, at) => text[at] === '*' && text[at + 1] !== '*' && at > 0 && text[at - 1] !== '*' && !isSpace(text, at - 1),
  _: (text, at) => text[at] === '_' && !isWord(text, at + 1) && at > 0 && text[at - 1] !== '_' && !isSpace(text, at - 1),
  '~~': (text, at) => text[at] === '~' && text[at + 1] === '~' && at > 0 && !isSpace(text, at - 1),
};

/** A text with tables of where searches stop. */
class Ahead {
  constructor(text) {
    this.text = text;
    this.tables = {};
    this.runs = null;
  }

  /** The first place from `from` on where a search stops; the text's length where there is none. */
  next(name, from) {
    const { text } = this;
    this.tables[name] ??= tableOf(text, STOPS[name]);
    return from < text.length ? this.tables[name][from] : text.length;
  }

  /** The start of the next run of as many backticks; -1 where there is none. Places are asked for in order. */
  nextRun(length, from) {
    this.runs ??= runsOf(this.text);
    const run = this.runs.get(length);
    if (!run) return -1;
    while (run.at < run.starts.length && run.starts[run.at] < from) run.at += 1;
    return run.starts[run.at] ?? -1;
  }
}

function tableOf(text, stops) {
  const table = new Int32Array(text.length);
  let next = text.length;
  for (let at = text.length - 1; at >= 0; at -= 1) {
    if (stops(text, at)) next = at;
    table[at] = next;
  }
  return table;
}

function runsOf(text) {
  const runs = new Map();
  for (let at = text.indexOf('`'); at !== -1; at = text.indexOf('`', at)) {
    const end = runEnd(text, '`', at);
    if (!runs.has(end - at)) runs.set(end - at, { starts: [], at: 0 });
    runs.get(end - at).starts.push(at);
    at = end;
  }
  return runs;
}

/** The parts of a text: strings and elements. */
export function inline(text, depth = 0) {
  if (depth > DEPTH_MAX || text.length > LENGTH_MAX) return broken(text);
  const ahead = new Ahead(text);
  const parts = [];
  let [from, at] = [0, 0];
  while (at < text.length) {
    const found = BEGINS.includes(text[at]) ? partAt(ahead, at, depth) : null;
    if (found?.part !== undefined) {
      parts.push(broken(text.slice(from, at)), found.part);
      from = found.end;
    }
    at = found?.end ?? at + 1;
  }
  parts.push(broken(text.slice(from)));
  return parts.flat();
}

/** What begins at a place: {end, part}; without a part, it is text until there; null where nothing begins. */
function partAt(ahead, at, depth) {
  const { text } = ahead;
  switch (text[at]) {
    case '\\': return at + 1 < text.length && ESCAPED.includes(text[at + 1]) ? { end: at + 2, part: text[at + 1] } : null;
    case '`': return codeAt(ahead, at);
    case '!': return text[at + 1] === '[' ? linkAt(ahead, at + 1, at, depth) : null;
    case '[': return linkAt(ahead, at, at, depth);
    case '<':
    case 'h': return addressAt(text, at);
    default: return emphasisAt(ahead, at, depth);
  }
}

function codeAt(ahead, at) {
  const end = runEnd(ahead.text, '`', at);
  const close = ahead.nextRun(end - at, end);
  return close === -1 ? { end } : { end: close + end - at, part: h('code', {}, ahead.text.slice(end, close)) };
}

/** `[label](address "title")`; a picture is shown as a link. */
function linkAt(ahead, at, begin, depth) {
  const { text } = ahead;
  const label = ahead.next('label', at + 1);
  if (text[label] !== ']' || text[label + 1] !== '(') return null;
  let from = ahead.next('words', label + 2);
  if (text[from] === '<') from += 1;
  const to = ahead.next('address', from);
  if (to === from) return null;
  const after = text[to] === '>' ? to + 1 : to;
  let last = ahead.next('words', after);
  if (text[last] === '"' && last > after) {
    const title = ahead.next('title', last + 1);
    const close = ahead.next('words', title + 1);
    if (text[close] === ')') last = close;
  }
  if (text[last] !== ')') return null;
  const [words, address] = [text.slice(at + 1, label), text.slice(from, to)];
  return { end: last + 1, part: link(address, words ? inline(words, depth + 1) : [address], text.slice(begin, last + 1)) };
}

/** An address in the words themselves, with or without `<>`. */
function addressAt(text, at) {
  const from = text[at] === '<' ? at + 1 : at;
  const scheme = ['https://', 'http://'].find((one) => text.startsWith(one, from));
  if (!scheme) return null;
  let to = from + scheme.length;
  while (to < text.length && !'<>"\')]'.includes(text[to]) && !isSpace(text, to)) to += 1;
  const after = to;
  while ('.,;:!?'.includes(text[to - 1])) to -= 1;
  if (to <= from + scheme.length) return { end: after };
  const address = text.slice(from, to);
  const end = text[to] === '>' ? to + 1 : to;
  return { end, part: link(address, [address], text.slice(at, end)) };
}

function emphasisAt(ahead, at, depth) {
  const { text } = ahead;
  for (const [mark, tag] of MARKS) {
    const from = at + mark.length;
    if (!text.startsWith(mark, at) || from >= text.length || isSpace(text, from)) continue;
    if (mark[0] === '_' && isWord(text, at - 1)) continue;
    if (mark.length === 1 && text[from] === mark) continue;
    let close = ahead.next(mark, from + 1);
    if (close >= text.length) continue;
    // Three marks at both ends: the inner one is an emphasis of its own.
    if (mark === '**' && text[from] === '*' && text[close + 2] === '*') close += 1;
    return { end: close + mark.length, part: h(tag, {}, inline(text.slice(from, close), depth + 1)) };
  }
  return null;
}

function link(address, words, whole) {
  let url;
  try { url = new URL(address); } catch { return whole; }
  if (!['http:', 'https:', 'mailto:'].includes(url.protocol)) return whole;
  return h('a', { href: url.href, target: '_blank', rel: 'noopener noreferrer' }, words);
}

/** Lines with breaks between them. Two spaces or a backslash before the end of a line break it; so does any line's end in
 * what models write. */
function broken(text) {
  const parts = [];
  const lines = text.split('\n');
  lines.forEach((line, at) => {
    let end = line.length;
    if (at < lines.length - 1) {
      if (line[end - 1] === '\\') end -= 1;
      while (line[end - 1] === ' ') end -= 1;
    }
    if (at > 0) parts.push(h('br'));
    if (end > 0) parts.push(line.slice(0, end));
  });
  return parts;
}
