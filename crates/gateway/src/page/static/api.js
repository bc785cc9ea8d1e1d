// What the page asks of the server it came from: JSON, streams of events, the key.

const KEY = 'hanzo.key';

/** What the server refused, or that it was not reached. */
export class ApiError extends Error {
  constructor(message, { status = 0, code = null, param = null, retryAfter = null } = {}) {
    super(message);
    Object.assign(this, { status, code, param, retryAfter });
  }
}

/** The key, of this tab alone: it is gone with it. */
export const key = {
  get: () => { try { return sessionStorage.getItem(KEY) ?? ''; } catch { return memory; } },
  set: (value) => {
    memory = value;
    try { if (value) sessionStorage.setItem(KEY, value); else sessionStorage.removeItem(KEY); } catch { /* kept in memory */ }
  },
};
let memory = '';

/** Where a route of this server is, also behind a proxy that serves it below a path. */
export const at = (path) => new URL(path, document.baseURI).href;

async function send(path, { method = 'GET', body, signal } = {}) {
  const headers = {};
  if (body !== undefined) headers['content-type'] = 'application/json';
  if (key.get()) headers.authorization = `Bearer ${key.get()}`;
  let response;
  try {
    response = await fetch(at(path), { method, headers, signal, cache: 'no-store', body: body === undefined ? undefined : JSON.stringify(body) });
  } catch (error) {
    if (error.name === 'AbortError') throw error;
    throw new ApiError('The server cannot be reached.');
  }
  if (response.ok) return response;
  const problem = await refusal(response);
  if (problem.status === 401) dispatchEvent(new CustomEvent('hanzo-key-wanted'));
  throw problem;
}

async function refusal(response) {
  const retryAfter = response.headers.get('retry-after');
  let error = {};
  try {
    const body = await response.json();
    error = typeof body.error === 'object' && body.error ? body.error : { message: body.error ?? body.reason };
  } catch { /* not JSON */ }
  const message = error.message ?? `The server answered ${response.status}.`;
  return new ApiError(message, { status: response.status, code: error.code, param: error.param, retryAfter });
}

/** The JSON of a route. */
export async function json(path, options) {
  return (await send(path, options)).json();
}

/** The text of a route. */
export async function text(path, options) {
  return (await send(path, options)).text();
}

/** `/health` says much with a 503 too. */
export async function health(signal) {
  const headers = key.get() ? { authorization: `Bearer ${key.get()}` } : {};
  const response = await fetch(at('health'), { headers, signal, cache: 'no-store' });
  if (response.status === 401) throw await refusal(response);
  return response.json();
}

/** The events of an answer that comes as it is made: each the JSON of one `data:`. */
export async function* events(path, body, signal) {
  const response = await send(path, { method: 'POST', body, signal });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = '';
  let ended = false;
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) break;
      rest += value;
      const lines = rest.split(/\r?\n/);
      rest = lines.pop();
      for (const line of lines) {
        if (!line.startsWith('data:')) continue;
        const data = line.slice(5).trim();
        if (data === '[DONE]') { ended = true; continue; }
        const event = JSON.parse(data);
        if (event.error) throw new ApiError(event.error.message ?? 'The answer broke off.', event.error);
        yield event;
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
  if (!ended) throw new ApiError('The connection ended before the answer did.');
}
