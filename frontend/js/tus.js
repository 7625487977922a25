// Resumable uploads by tus 1.0: a file goes in pieces, and on where it was broken off, after a reload too.
const PIECE = 4 * 1024 * 1024;
// Longer than 60 s together: as long holds the upload a request whose web process died with it.
const WAITS = [1, 2, 4, 8, 16, 32];

/** A refusal that trying again does not mend; its message is the server's. */
export class RefusedError extends Error {}

/**
 * Uploads `file` and gives the upload's id.
 *
 * @param {{url: string, csrf: string, tenant: string}} server where uploads begin, and on whose behalf.
 * @param {(sent: number) => void} progress is told the file's bytes that are there.
 */
export async function upload(file, server, progress) {
  const place = (await remembered(file, server)) ?? (await begin(file, server));
  let offset = await reached(place, server);
  progress(offset);
  for (let attempt = 0; offset < file.size; ) {
    try {
      offset = await send(file, place, offset, server);
      attempt = 0;
      progress(offset);
    } catch (error) {
      if (error instanceof RefusedError || attempt === WAITS.length) throw error;
      await new Promise((done) => setTimeout(done, 1000 * WAITS[attempt]));
      attempt += 1;
      offset = await reached(place, server).catch(() => offset);
    }
  }
  return place.split("/").pop();
}

/** Forgets where `file` was uploaded to, once that is registered. */
export const forget = (file, server) => sessionStorage.removeItem(key(file, server));

const key = (file, server) => `tus:${server.tenant}:${file.name}:${file.size}:${file.lastModified}`;

async function remembered(file, server) {
  const place = sessionStorage.getItem(key(file, server));
  if (!place) return null;
  return reached(place, server).then(() => place, () => null);
}

async function begin(file, server) {
  const name = btoa(String.fromCodePoint(...new TextEncoder().encode(file.name)));
  const headers = { "Upload-Length": String(file.size), "Upload-Metadata": `filename ${name}` };
  const reply = await ask("POST", server.url, server, headers);
  // Of the address its path alone: behind a proxy the server may not know its own name.
  const place = new URL(reply.headers.get("Location")).pathname;
  sessionStorage.setItem(key(file, server), place);
  return place;
}

async function reached(place, server) {
  return Number((await ask("HEAD", place, server, {})).headers.get("Upload-Offset"));
}

async function send(file, place, offset, server) {
  const piece = await file.slice(offset, offset + PIECE).arrayBuffer();
  const headers = { "Upload-Offset": String(offset), "Content-Type": "application/offset+octet-stream" };
  // Browsers have digests on secure origins only; the content is held to its own digest later in any case.
  if (crypto.subtle) {
    const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", piece));
    headers["Upload-Checksum"] = `sha256 ${btoa(String.fromCharCode(...digest))}`;
  }
  const reply = await ask("PATCH", place, server, headers, piece);
  return Number(reply.headers.get("Upload-Offset"));
}

async function ask(method, url, server, headers, body) {
  const own = { "Tus-Resumable": "1.0.0", "X-CSRFToken": server.csrf, "X-Graftwork-Tenant": server.tenant };
  const reply = await fetch(url, { method, body, headers: { ...own, ...headers } });
  if (reply.ok) return reply;
  const text = await reply.json().then((told) => told.errors[0].detail, () => `status ${reply.status}`);
  const mends = reply.status >= 500 || [408, 409, 429, 460].includes(reply.status);
  throw mends && method !== "POST" ? new Error(text) : new RefusedError(text);
}
