// Lines of Markdown: the kind of each, found by one pass over its characters. No regular expression reads what a model
// writes, because one that backtracks takes a time that grows with the square of the text.

/** Whether the character at a place is white space. */
export const isSpace = (text, at) => at < text.length && text[at].trim() === '';

const isDigit = (character) => character >= '0' && character <= '9';

/** The end of a run of one character. */
export function runEnd(text, character, from) {
  let at = from;
  while (at < text.length && text[at] === character) at += 1;
  return at;
}

/** The first place from `from` on that is not white space. */
function spaceEnd(text, from) {
  let at = from;
  while (isSpace(text, at)) at += 1;
  return at;
}

/** Up to three spaces may stand before a mark. */
const indent = (line) => Math.min(runEnd(line, ' ', 0), 3);

/** The first line of a block of code: {mark, length, language}; null where it is none. */
export function fence(line) {
  const from = indent(line);
  const mark = line[from];
  if (mark !== '`' && mark !== '~') return null;
  const end = runEnd(line, mark, from);
  const info = line.slice(end).trim();
  if (end - from < 3 || info.includes('`')) return null;
  let word = 0;
  while (word < info.length && !isSpace(info, word)) word += 1;
  return { mark, length: end - from, language: info.slice(0, word) };
}

/** Whether a line ends the block of code that `open` began. */
export function closes(line, open) {
  const from = indent(line);
  const end = runEnd(line, open.mark, from);
  return end - from >= open.length && line.slice(end).trim() === '';
}

/** A heading: {level, words}; null where it is none. */
export function heading(line) {
  const from = indent(line);
  const end = runEnd(line, '#', from);
  if (end === from || end - from > 6 || !isSpace(line, end)) return null;
  const words = line.slice(end).trim();
  let last = words.length;
  while (last > 0 && words[last - 1] === '#') last -= 1;
  // Marks at the end belong to the words unless a space stands before them.
  const isClosed = last === 0 || isSpace(words, last - 1);
  return { level: end - from, words: isClosed ? words.slice(0, last).trimEnd() : words };
}

/** Whether a line is a rule: three or more of one mark, and spaces. */
export function isRule(line) {
  const from = indent(line);
  const mark = line[from];
  if (mark !== '-' && mark !== '*' && mark !== '_') return false;
  let count = 0;
  for (let at = from; at < line.length; at += 1) {
    if (line[at] === mark) count += 1;
    else if (!isSpace(line, at)) return false;
  }
  return count >= 3;
}

/** A line of a quote without its mark; null where it is none. */
export function quoted(line) {
  const from = indent(line);
  if (line[from] !== '>') return null;
  return line.slice(from + (isSpace(line, from + 1) ? 2 : 1));
}

/** The first line of an item: {indent, number, words}, where a list without numbers has none; null where it is none. */
export function item(line) {
  const from = spaceEnd(line, 0);
  let at = from;
  while (at < line.length && isDigit(line[at]) && at - from < 10) at += 1;
  const digits = at - from;
  const isMark = digits === 0 ? '-*+'.includes(line[at] ?? ' ') : digits < 10 && (line[at] === '.' || line[at] === ')');
  if (!isMark || !isSpace(line, at + 1)) return null;
  return { indent: from, number: digits > 0 ? Number(line.slice(from, at)) : null, words: line.slice(spaceEnd(line, at + 1)) };
}

/** How much white space a line begins with. */
export const depthOf = (line) => spaceEnd(line, 0);

/** The cells of a row of a table. */
export function cells(row) {
  const found = [];
  const text = row.trim();
  let from = text[0] === '|' ? 1 : 0;
  for (let at = from; at < text.length; at += 1) {
    if (text[at] !== '|' || text[at - 1] === '\\') continue;
    found.push(text.slice(from, at));
    from = at + 1;
  }
  if (from < text.length || found.length === 0) found.push(text.slice(from));
  return found.map((cell) => cell.trim().replaceAll('\\|', '|'));
}

/** The sides that the columns of a table keep to, as the row below its head says; null where it is no such row. */
export function sidesOf(row) {
  if (!row.includes('-')) return null;
  const sides = [];
  for (const cell of cells(row)) {
    const from = cell[0] === ':' ? 1 : 0;
    const end = runEnd(cell, '-', from);
    const isRight = cell[end] === ':';
    if (end === from || end + (isRight ? 1 : 0) !== cell.length) return null;
    sides.push(isRight ? (from === 1 ? 'center' : 'right') : 'left');
  }
  return sides;
}
