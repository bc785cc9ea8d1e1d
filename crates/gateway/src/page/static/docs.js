// Shows openapi.json: routes by subject, their fields, an example to try, and what they answer.

import { at, json } from './api.js';
import { $, h } from './dom.js';
import { codeBlock } from './markdown.js';

const DEPTH_MAX = 4; // objects inside each other
let schemas = {};

const nameOf = (ref) => ref.split('/').at(-1);
const resolve = (schema) => (schema?.$ref ? schemas[nameOf(schema.$ref)] ?? {} : schema ?? {});
const idOf = (method, path) => `${method}${path.replaceAll(/[^\w]+/g, '-')}`;

/** A type in words. */
function typeOf(schema) {
  if (schema.$ref) return nameOf(schema.$ref);
  if (schema.enum) return schema.enum.map((value) => JSON.stringify(value)).join(' | ');
  if (schema.anyOf) return schema.anyOf.map(typeOf).join(' | ');
  if (schema.type === 'array') return `${typeOf(schema.items ?? {})}[]`;
  const low = schema.minimum ?? schema.exclusiveMinimum;
  const range = low !== undefined || schema.maximum !== undefined ? ` ${low ?? ''}…${schema.maximum ?? ''}` : '';
  return `${[schema.type ?? 'any'].flat().join(' | ')}${range}`;
}

/** The object with fields that a type comes down to, if it does. */
function objectIn(schema) {
  for (const one of schema.anyOf ?? [schema]) {
    const found = resolve(one.type === 'array' ? one.items : one);
    if (found.properties && Object.keys(found.properties).length > 0) return found;
    if (found.anyOf) return objectIn(found);
  }
  return null;
}

function fieldsOf(object, depth = 0) {
  const required = new Set(object.required ?? []);
  const entries = Object.entries(object.properties ?? {});
  const isIdle = ([, schema]) => /^not supported by this build|changes nothing/.test(schema.description ?? '');
  entries.sort(([a], [b]) => required.has(b) - required.has(a));
  const row = ([name, schema]) => {
    const inner = depth < DEPTH_MAX ? objectIn(schema) : null;
    return h('div', {}, h('dt', {}, name, required.has(name) && h('em', {}, ' required')),
      h('dd', {}, schema.description, h('span', { class: 'type' }, typeOf(schema)),
        inner && h('details', { class: 'more' }, h('summary', {}, 'Its fields'), h('div', { class: 'inner' }, fieldsOf(inner, depth + 1)))));
  };
  const used = entries.filter((entry) => !isIdle(entry));
  const idle = entries.filter(isIdle);
  return h('div', {},
    h('dl', { class: 'fields' }, used.map(row)),
    idle.length > 0 && h('details', { class: 'more' }, h('summary', {}, `${idle.length} fields that are taken where they ask for nothing`), h('dl', { class: 'fields' }, idle.map(row))));
}

function bodyOf(operation) {
  const body = operation.requestBody?.content?.['application/json'];
  if (!body) return null;
  const schema = resolve(body.schema);
  const kinds = schema.anyOf ?? body.schema.anyOf;
  if (!kinds) return h('section', {}, h('h4', {}, 'Request'), fieldsOf(schema));
  return h('section', {}, h('h4', {}, 'Request, one of'), kinds.map((kind) => h('details', { class: 'more' }, h('summary', {}, typeOf(kind)), h('div', { class: 'inner' }, fieldsOf(resolve(kind), 1)))));
}

function exampleOf(method, path, operation) {
  const body = operation.requestBody?.content?.['application/json'];
  const example = Object.values(body?.examples ?? {})[0]?.value;
  if (body && !example) return null;
  const lines = [`curl ${at(path.slice(1))}`];
  if (method === 'delete') lines.push('-X DELETE');
  if (body) lines.push("-H 'content-type: application/json'", `-d '${JSON.stringify(example).replaceAll("'", "'\\''")}'`);
  return h('section', {}, h('h4', {}, 'Example'), codeBlock(lines.join(' \\\n  '), 'sh'));
}

function answersOf(operation) {
  const ok = operation.responses['200'];
  const [kind, media] = Object.entries(ok?.content ?? {})[0] ?? [];
  const event = ok?.content?.['text/event-stream']?.['x-event'];
  const shown = (title, schema) => h('details', { class: 'more' }, h('summary', {}, title), h('div', { class: 'inner' }, fieldsOf(objectIn(schema) ?? {}, 1)));
  const schema = media?.schema;
  return h('section', {}, h('h4', {}, 'Answer'),
    schema && (objectIn(schema) ? shown(`${kind}: ${typeOf(schema)}`, schema) : h('p', { class: 'note' }, `${kind}: ${typeOf(schema)}`)),
    event && shown(`text/event-stream, with stream: each event ${typeOf(event)}`, event),
    h('details', { class: 'more' }, h('summary', {}, 'Refusals'),
      h('dl', { class: 'statuses' }, Object.entries(operation.responses).filter(([status]) => status !== '200').map(([status, answer]) => [h('dt', {}, status), h('dd', {}, answer.description)]))));
}

function routeView(method, path, operation) {
  const element = h('details', { class: 'route', id: idOf(method, path) },
    h('summary', {}, h('h3', {}, h('span', { class: `method ${method}` }, method.toUpperCase()), path), h('span', { class: 'about' }, operation.summary)));
  // Filled when it is first looked into.
  element.addEventListener('toggle', () => {
    if (!element.open || element.childElementCount > 1) return;
    element.append(h('div', { class: 'route-body' }, exampleOf(method, path, operation), bodyOf(operation), answersOf(operation)));
  });
  return element;
}

function openNamed() {
  const element = location.hash.length > 1 && document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (!element || element.tagName !== 'DETAILS') return;
  element.open = true;
  element.scrollIntoView();
}

async function show() {
  const api = await json('openapi.json');
  schemas = api.components.schemas;
  const groups = new Map(api.tags.map(({ name }) => [name, []]));
  for (const [path, item] of Object.entries(api.paths)) {
    for (const [method, operation] of Object.entries(item)) {
      const tag = operation.tags[0];
      if (!groups.has(tag)) groups.set(tag, []);
      groups.get(tag).push([method, path, operation]);
    }
  }
  const filled = [...groups].filter(([, list]) => list.length > 0);
  $('docs').replaceChildren(
    h('header', {}, h('h1', {}, 'API'), h('p', { class: 'lead' }, api.info.description), h('p', { class: 'note' }, `Version ${api.info.version}. For tools: `, h('a', { href: 'openapi.json' }, 'openapi.json'), '.')),
    filled.map(([tag, list]) => h('section', { class: 'docs-group', 'aria-label': tag }, h('h2', {}, tag), list.map((one) => routeView(...one)))).reduce((all, one) => (all.append(one), all), document.createDocumentFragment()));
  $('contents').replaceChildren(...filled.flatMap(([tag, list]) => [h('h2', {}, tag), h('ul', {}, list.map(([method, path]) => h('li', {}, h('a', { href: `#${idOf(method, path)}` }, h('span', { class: `method ${method}` }, method === 'delete' ? 'DEL' : method.toUpperCase()), path))))]));
  openNamed();
}

addEventListener('hashchange', openNamed);
show().catch((error) => $('docs').replaceChildren(h('p', { class: 'problem', role: 'alert' }, error.message)));
